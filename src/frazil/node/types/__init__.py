"""Types of log, broker and registry that doors translate."""

"""Log segments in an object store."""

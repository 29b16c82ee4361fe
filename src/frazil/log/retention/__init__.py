"""Which segments may be deleted, and the guards that must agree first."""

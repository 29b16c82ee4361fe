"""The mover's commit: one pinned, atomic change of a table."""

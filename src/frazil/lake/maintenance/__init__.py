"""Table inspection for maintenance, and removal of files that are no longer needed."""

"""`frazil log renumber`: continue a log that is behind its table after the table's rows."""

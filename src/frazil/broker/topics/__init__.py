"""Topics of the broker: creation, opening, deletion; their messages and dead letters."""

"""Reading tables by offset: planning, prefetch, rows of a file, audit."""

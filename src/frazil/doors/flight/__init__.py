"""The Arrow Flight server: Frazil clients, stock Flight clients, movers."""

"""Frazil's network client: the storage and topic interfaces, over Arrow Flight."""

"""Frazil's own client: the faces of storage and topic, over Arrow Flight."""

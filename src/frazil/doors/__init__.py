"""Doors: each one translates a protocol into calls of the Node. No door imports another."""

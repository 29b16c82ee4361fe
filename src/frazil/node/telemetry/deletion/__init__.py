"""Deletion of a tenant with all its data, and the proof of it."""

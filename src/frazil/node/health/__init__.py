"""Readiness, warnings and statistics of a node."""

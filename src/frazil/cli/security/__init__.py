"""Verbs of keys, roles, bindings and certificates."""

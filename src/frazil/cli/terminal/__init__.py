"""Shared terminal output and input of verbs: options, tables, progress, formats."""

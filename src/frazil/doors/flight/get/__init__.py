"""Rows to clients: reading, flight infos, SQL."""

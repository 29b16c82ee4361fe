"""Schemas of payloads: subjects with versions, what may follow what, and whether a message fits."""

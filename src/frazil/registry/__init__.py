"""Payload schemas: subjects with versions, compatibility, and validation of messages."""

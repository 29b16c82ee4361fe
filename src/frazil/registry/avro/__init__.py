"""Avro schemas: parsing, compatibility, validation of payloads."""

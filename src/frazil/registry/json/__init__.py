"""JSON Schema: parsing, compatibility."""

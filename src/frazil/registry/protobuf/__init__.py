"""Protocol Buffers schemas: parsing, compatibility."""

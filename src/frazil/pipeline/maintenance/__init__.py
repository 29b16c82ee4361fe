"""Maintenance of tables: Iceberg procedures, the pass over all tables, its schedule."""

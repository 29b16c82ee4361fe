"""SQL over topics with DuckDB."""

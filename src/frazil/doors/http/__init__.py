"""The HTTP server: health, metrics and the admin API."""

"""Telemetry: tenants, their datasets, and the requests that they send."""

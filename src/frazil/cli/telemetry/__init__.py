"""Verbs of telemetry."""

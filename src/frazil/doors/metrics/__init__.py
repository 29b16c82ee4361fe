"""Prometheus metrics, with their alerts and dashboard."""

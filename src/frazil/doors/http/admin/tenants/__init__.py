"""Tenants over HTTP."""

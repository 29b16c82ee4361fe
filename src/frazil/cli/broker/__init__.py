"""Verbs on what the broker of a running server has: namespaces, subscriptions, their clients, dead letters, schemas."""

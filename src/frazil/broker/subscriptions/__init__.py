"""Subscriptions: cursor, consumers, and delivery of messages to streams."""

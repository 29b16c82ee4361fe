"""The verbs for a cluster of brokers."""

"""The brokers of a cluster over HTTP, and the owners of topics."""

"""Which broker owns a topic: the cluster's brokers, and the topics of each."""

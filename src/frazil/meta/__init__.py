"""The metadata store: durable keys and values, with an SQLite and an etcd implementation."""

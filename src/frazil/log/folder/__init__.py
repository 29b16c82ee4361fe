"""The data folder: its topics, its owner, its identity."""

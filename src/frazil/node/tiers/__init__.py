"""The tiers of a topic: its log, in this process or another, and its table."""

"""The read path of a log: positions, segment files, the replay cache, the tail, and the interface to colder tiers."""

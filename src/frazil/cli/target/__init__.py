"""The target of a verb: a data folder, a server, or a process of its own."""

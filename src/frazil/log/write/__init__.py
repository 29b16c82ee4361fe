"""The write path of a log: checks, group commit, producers, the disk budget."""

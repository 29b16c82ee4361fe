"""The Node: the interface to a data folder, over the log and the lake."""

"""The pipeline: Spark carries the log into tables."""

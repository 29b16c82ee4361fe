"""The pipeline: Spark moves the log into tables."""

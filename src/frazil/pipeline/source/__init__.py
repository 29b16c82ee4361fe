"""The Spark source `format("frazil")`, for batch and streaming."""

"""The Spark source: `register(spark)`, then `spark.read.format("frazil")` and `spark.readStream`."""

from frazil.pipeline.source.source import register

__all__ = ["register"]

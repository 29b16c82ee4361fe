"""Topics as a source of Spark: `register(spark)`, then `spark.read.format("frazil")` and `spark.readStream`."""

from frazil.pipeline.spark_source import register

__all__ = ["register"]

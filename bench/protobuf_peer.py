"""Spark's own `from_protobuf`, in a process of its own as it is of another Spark than Frazil's.

Requests of spans in Parquet files become rows in Parquet files.

`python bench/protobuf_peer.py DESCRIPTORS` says `ready`, and for each line with a folder of requests and one for rows,
separated by a tab, how many seconds it took. The Spark is that of PYTHONPATH, the connector that of SPARK_PROTOBUF_JAR.
"""

from __future__ import annotations

import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as sql
from pyspark.sql.protobuf.functions import from_protobuf

DEPTH = {"recursive.fields.max.depth": "2"}


def decode(session: SparkSession, descriptors: str, source: str, target: str) -> float:
    decoded = from_protobuf(sql.col("request"), "ExportTraceServiceRequest", descriptors, DEPTH)
    started = time.perf_counter()
    resources = session.read.parquet(source).select(sql.explode(decoded.getField("resource_spans")).alias("r"))
    scopes = resources.select(sql.col("r.resource").alias("resource"), sql.explode("r.scope_spans").alias("s"))
    spans = scopes.select("resource", sql.col("s.scope").alias("scope"), sql.explode("s.spans").alias("span"))
    spans.select("resource", "scope", "span.*").write.option("compression", "zstd").parquet(target)
    return time.perf_counter() - started


def main() -> None:
    builder = SparkSession.builder.master("local[2]").config("spark.jars", os.environ["SPARK_PROTOBUF_JAR"])
    session = builder.config("spark.ui.enabled", "false").config("spark.driver.host", "127.0.0.1").getOrCreate()
    session.range(1).count()  # started, and warm
    print("ready", flush=True)
    for line in sys.stdin:
        source, target = line.rstrip("\n").split("\t")
        print(decode(session, sys.argv[1], source, target), flush=True)
    session.stop()


if __name__ == "__main__":
    main()

"""The peer of the mover: Spark's own append to an Iceberg table, from a Python data source over the same log.

A child of `bench/lake.py`, told on stdin what to do, one JSON object a line; it answers in seconds. The table is
not partitioned and not sorted, and Spark may write it as it likes: as cheap as an append can be.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.pandas.types import from_arrow_schema

from frazil.core.disk import LocalDisk
from frazil.core.offsets import OffsetRange
from frazil.core.rows import ENVELOPE, OFFSET
from frazil.lake.tables.schema import PARTITION, table_rows
from frazil.log.read.ranges import read_range

COLUMNS = pa.schema([OFFSET, PARTITION, *ENVELOPE])


class RangePartition(InputPartition):
    def __init__(self, start: int, end: int) -> None:
        super().__init__(start)
        self.start, self.end = start, end


class LogReader(DataSourceReader):
    def __init__(self, options: dict[str, str]) -> None:
        self._log_id = options["log_id"]
        self._files = [(base, Path(path)) for base, path in json.loads(options["files"])]
        self._ranges = json.loads(options["ranges"])

    def partitions(self) -> list[InputPartition]:
        return [RangePartition(start, end) for start, end in self._ranges]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        wanted = OffsetRange(partition.start, partition.end)
        for rows in read_range(LocalDisk(), self._log_id, self._files, wanted, ENVELOPE):
            yield table_rows(rows, 0)


class LogSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "log"

    def schema(self) -> Any:
        return from_arrow_schema(COLUMNS)

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        return LogReader(dict(self.options))


def main(jars: str, warehouse: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    spark = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.jars", jars)
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.catalog.peer", "org.apache.iceberg.spark.SparkCatalog")
        .config("spark.sql.catalog.peer.type", "hadoop")
        .config("spark.sql.catalog.peer.warehouse", warehouse)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.dataSource.register(LogSource)
    for number, line in enumerate(sys.stdin):
        log = json.loads(line)
        table = f"peer.bench.t{number}"
        rows = (
            spark.read.format("log")
            .options(log_id=log["log_id"], files=json.dumps(log["files"]), ranges=json.dumps(log["ranges"]))
            .load()
        )
        rows.limit(0).writeTo(table).tableProperty("write.parquet.compression-codec", "zstd").tableProperty(
            "write.distribution-mode", "none"
        ).create()
        started = time.perf_counter()
        rows.writeTo(table).append()
        seconds = time.perf_counter() - started
        count = spark.table(table).count()
        print(json.dumps({"seconds": seconds, "rows": count}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A streaming query over `format("frazil")` into Parquet files, to be killed at any moment.

python stream_child.py DATA SINK       run until killed; a line for each batch
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from frazil.pipeline.spark.session import SparkPlace, open_session
from frazil.spark import register

TOPIC = "/crash/stream"
EACH = 400


def start_query(session: SparkSession, data: Path, sink: Path, **options: int) -> StreamingQuery:
    """Go on from what the sink has."""
    rows = session.readStream.format("frazil").option("subscribe", TOPIC).option("data", str(data)).options(**options)
    return (
        rows.load()
        .selectExpr("partition", "offset", "cast(value as string) as value")
        .writeStream.format("parquet").option("path", str(sink / "rows")).option("checkpointLocation", str(sink / "at"))
        .start()
    )  # fmt: skip


def main(data: Path, sink: Path) -> None:
    session = open_session(SparkPlace("local[2]"))
    register(session)
    session.conf.set("spark.sql.streaming.pollingDelay", "10ms")
    query = start_query(session, data, sink, maxOffsetsPerTrigger=EACH)  # many small batches to be killed in
    told = -1
    while not query.awaitTermination(0.05):
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told and progress["numInputRows"]:
            told = progress["batchId"]
            print(json.dumps({"batch": told, "rows": progress["numInputRows"]}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))

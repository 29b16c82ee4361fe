"""`format("frazil")` beside Iceberg's own Spark reader, over the same table, in turns in one session: `make bench`.

Both answer the same query, which needs every column. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from dataclasses import asdict
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

import frazil
from frazil.core.settings import Settings
from frazil.spark import register
from lake import BATCH, JARS, MESSAGE_BYTES, child, messages
from measure import Figure, folder, report

HERE = Path(__file__).resolve().parent
TOPIC, TABLE = "/bench/read", "bench.read"
TURNS = 5
WANTED = 0.6


def open_session(data: Path) -> SparkSession:
    """With the catalog that the mover made, opened by Iceberg's runtime."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    catalog = {
        "": "org.apache.iceberg.spark.SparkCatalog",
        ".type": "jdbc",
        ".uri": f"jdbc:sqlite:{data}/catalog.db",
        ".jdbc.schema-version": "V1",
        ".warehouse": f"file://{data}/warehouse",
        ".cache-enabled": "false",
    }
    builder = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.extraClassPath", ":".join(str(jar) for jar in sorted(JARS.glob("*.jar"))))
        .config("spark.sql.session.timeZone", "UTC")
    )
    for name, value in catalog.items():
        builder = builder.config(f"spark.sql.catalog.peer{name}", value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    register(session)
    return session


def query(rows: DataFrame) -> tuple[float, int]:
    """Seconds, and how many rows. Each column is looked at."""
    asked = rows.selectExpr(
        "count(*) as rows",
        "sum(length(value)) as bytes",
        "max(offset) as last",
        "max(timestamp) as newest",
        "count(key) as keys",
        "sum(size(headers)) as headers",
    )
    started = time.perf_counter()
    (answer,) = asked.collect()
    return time.perf_counter() - started, int(answer.rows)


def reading(where: Path, rows: int) -> list[Figure]:
    data = where / "data"
    with frazil.open(Settings(data=data)) as storage:
        topic, some = storage.topic(TOPIC), messages(BATCH, 1)
        for _ in range(rows // BATCH):
            topic.publish_many(some)
    with child(str(HERE / "lake_child.py")) as mover:
        mover.ask(do="move", data=str(data), settings={})
    session = open_session(data)
    ours = session.read.format("frazil").option("subscribe", TOPIC).option("data", str(data))
    taken: dict[str, list[float]] = {"frazil": [], "iceberg": []}
    for turn in range(TURNS + 1):
        peer = session.table(f"peer.{TABLE}").selectExpr(
            "_key as key",
            "_payload as value",
            "_offset as offset",
            "_append_time as timestamp",
            "_attributes as headers",
        )
        for name, frame in (("frazil", ours.load()), ("iceberg", peer)):
            seconds, count = query(frame)
            assert count == rows
            if turn:  # the first warms both
                taken[name].append(seconds)
    session.stop()
    own, other = (rows / statistics.median(taken[name]) for name in ("frazil", "iceberg"))
    name = f"Spark batch of {rows:,} rows of {MESSAGE_BYTES} B from the table, beside Iceberg's own reader"
    return [Figure(name, f"{own:,.0f}/s", f"{other:,.0f}/s", own / other, f"≥ {WANTED}", own / other >= WANTED)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows in the table")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    with folder() as where:
        figures = reading(where.absolute(), arguments.rows // BATCH * BATCH)
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(figure) for figure in figures]) + "\n")
    else:
        report("Reading with Spark", figures)


if __name__ == "__main__":
    main()

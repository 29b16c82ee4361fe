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
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.spark import spark_options
from frazil.spark import register
from lake import BATCH, JARS, MESSAGE_BYTES, child, messages
from measure import Figure, folder, report

HERE = Path(__file__).resolve().parent
TOPIC, TABLE = "/bench/read", "bench.read"
PEER = (
    "_key as key",
    "_payload as value",
    f"'{TOPIC}' as topic",
    "_topic_partition as partition",
    "_offset as offset",
    "_append_time as timestamp",
    "_attributes as headers",
)
TURNS = 5
WANTED = 0.6


def open_session(settings: Settings) -> SparkSession:
    """With the catalog of the settings, opened by Iceberg's runtime under the name that its tables have in there."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder = (
        SparkSession.builder.master("local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.memory", "4g")
        .config("spark.driver.extraClassPath", ":".join(str(jar) for jar in sorted(JARS.glob("*.jar"))))
        .config("spark.sql.session.timeZone", "UTC")
    )
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    for name, value in spark_options(settings).items():
        session.conf.set(name, value)
    register(session)
    return session


def query(rows: DataFrame) -> tuple[float, tuple[Any, ...]]:
    """Seconds, and the answer. Each column is looked at in every row."""
    asked = rows.selectExpr(
        "count(*)",
        "count(key)",
        "sum(length(value))",
        "max(length(topic))",
        "max(partition)",
        "sum(offset)",
        "max(timestamp)",
        "sum(size(headers))",
    )
    started = time.perf_counter()
    (answer,) = asked.collect()
    return time.perf_counter() - started, tuple(answer)


def fill(settings: Settings, rows: int) -> None:
    """All rows in the table, as the mover writes them. A tenth has a key and attributes."""
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        some = [
            frazil.Outgoing(payload)
            if number % 10
            else frazil.Outgoing(payload, f"k{number}".encode(), {"trace": f"{number:032x}"})
            for number, payload in enumerate(messages(BATCH, 1))
        ]
        for _ in range(rows // BATCH):
            topic.publish_many(some)
    with child(str(HERE / "lake_child.py")) as mover:
        assert mover.ask(do="move", data=str(settings.data), settings={})["rows"] == rows


def reading(settings: Settings, rows: int) -> list[Figure]:
    session = open_session(settings)
    frames: dict[str, Callable[[], DataFrame]] = {
        "frazil": lambda: session.read.format("frazil").options(subscribe=TOPIC, data=str(settings.data)).load(),
        "iceberg": lambda: session.table(f"{settings.catalog.name}.{TABLE}").selectExpr(*PEER),
    }
    taken: dict[str, list[float]] = {name: [] for name in frames}
    answers = set()
    for turn in range(TURNS + 1):
        for name, frame in frames.items():
            seconds, answer = query(frame())
            answers.add(answer)
            if turn:  # the first warms both
                taken[name].append(seconds)
    session.stop()
    assert len(answers) == 1, answers
    assert answers.pop()[0] == rows
    own, other = (rows / statistics.median(taken[name]) for name in ("frazil", "iceberg"))
    name = f"Spark batch of {rows:,} rows of {MESSAGE_BYTES} B from the table, beside Iceberg's own reader"
    return [Figure(name, f"{own:,.0f}/s", f"{other:,.0f}/s", own / other, f"≥ {WANTED}", own / other >= WANTED)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows in the table")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    arguments = parser.parse_args()
    with folder() as where:
        settings, rows = make_settings({"data": where.absolute() / "data"}), arguments.rows // BATCH * BATCH
        fill(settings, rows)
        figures = reading(settings, rows)
    if arguments.json:
        sys.stdout.write(json.dumps([asdict(figure) for figure in figures]) + "\n")
    else:
        report("Reading with Spark", figures)


if __name__ == "__main__":
    main()

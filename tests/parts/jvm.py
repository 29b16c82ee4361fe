"""The options of the tests' JVMs, and an archive of Spark's classes that spares each of them most of its start.

`make parts` runs this file as a program, which makes the archive. A JVM whose classpath is another one ignores it.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ROOT / ".uv" / "parts"
CONF = PARTS / "spark-conf"
"""An empty folder: it is on the classpath of Spark, and an archive knows of jars alone."""
ARCHIVE = PARTS / "spark.jsa"

SHORT_LIVED_JVM = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""A JVM of a test lives for seconds; half of its work would be to optimise code that is about to end."""
QUIET = "-Xlog:disable"
"""Warnings about an archive go to stdout, where a verb prints its answer."""


def spark_options(archive: Path = ARCHIVE) -> tuple[str, ...]:
    """Options of every JVM that runs Spark."""
    if not archive.exists():
        return SHORT_LIVED_JVM
    return (*SHORT_LIVED_JVM, QUIET, f'-XX:SharedArchiveFile="{archive}"')


def use_with_spark(options: tuple[str, ...]) -> None:
    """Let `spark-submit`, which PySpark uses too, start its JVM with these options."""
    CONF.mkdir(parents=True, exist_ok=True)
    os.environ["SPARK_CONF_DIR"] = str(CONF)
    os.environ["SPARK_SUBMIT_OPTS"] = " ".join(options)


def make_archive(archive: Path) -> None:
    """Keep the classes of a JVM that has done a little of everything that tests do."""
    use_with_spark((*SHORT_LIVED_JVM, QUIET, f'-XX:ArchiveClassesAtExit="{archive}"'))

    from pyspark.core.context import SparkContext

    from frazil.pipeline.spark.session import SparkPlace, open_session, warm_up

    session = open_session(SparkPlace("local[2]"))
    warm_up(session)
    with tempfile.TemporaryDirectory() as folder:
        _stream(session, Path(folder))
        rows = session.read.parquet(f"{folder}/rows")
        rows.createOrReplaceTempView("topic")
        session.sql(
            "with o as (select value % 3 as k, from_json('{\"a\": 1}', 'a int, b array<string>') as j from topic)"
            " select k, count(*), sum(cast(j.a as decimal(10, 2))) from o group by k order by k"
        ).collect()
    session.stop()
    gateway = SparkContext._gateway
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(120)  # it writes the archive as it ends


def _stream(session, folder: Path) -> None:  # type: ignore[no-untyped-def]
    rows = session.readStream.format("rate").option("rowsPerSecond", 1_000).load().select("value")
    query = (
        rows.writeStream.format("parquet")
        .option("path", str(folder / "rows"))
        .option("checkpointLocation", str(folder / "at"))
        .start()
    )
    while not query.recentProgress:
        query.awaitTermination(0.2)
    query.stop()


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]))

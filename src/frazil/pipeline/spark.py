"""The Spark session of the pipeline, local or on a cluster, and the one job it runs."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Sequence

from pyspark.sql import SparkSession

from frazil.pipeline.work import RangeInput, RangeOutput, run_in_task


def open_session(master: str | None = None, remote: str | None = None) -> SparkSession:
    """A session; without a master or a remote, Spark runs inside this process's own JVM."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers start whatever Python is on PATH
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if remote is None and (master or "local").startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # else Spark listens on whatever address it finds first
    builder = SparkSession.builder.appName("frazil")
    if remote is not None:
        return builder.remote(remote).getOrCreate()
    session = (
        builder.master(master or "local[*]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1" if master is None else "0.0.0.0")  # noqa: S104
        .config("spark.python.worker.reuse", "true")
        .config("spark.task.maxFailures", "3")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    return session


def warm_up(session: SparkSession) -> None:
    """The first job of a JVM and the imports of its workers take seconds: have them behind us."""
    run_tasks(session, [[]])


def run_tasks(session: SparkSession, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
    """Run all tasks as one job; an error of any is the error of all, and nothing was committed."""
    if not tasks:
        return []
    frame = session.range(0, len(tasks), 1, len(tasks))
    moved = frame.mapInArrow(run_in_task(tasks), "output binary")  # type: ignore[arg-type]
    return [pickle.loads(row.output) for row in moved.collect()]  # noqa: S301 - made by our own tasks

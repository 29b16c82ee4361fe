"""The Spark session of the pipeline, in this process, on a cluster or behind Spark Connect, and the one job it runs.

A session that `spark-submit` prepared is taken as it is: master, addresses and all else are its caller's word.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from pyspark.conf import SparkConf
from pyspark.core.context import SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession
from pyspark.sql import functions as sql

from frazil.pipeline.work import RangeInput, RangeOutput, run_in_task

TASKS_MIN = 2
PORT_OF_ANY_KIND = 7077
GATEWAY_END_SECONDS_MAX = 5.0


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Where jobs run. With neither master nor remote, `spark-submit` has said it."""

    master: str | None = None
    remote: str | None = None
    elsewhere: bool = False
    """Whether tasks may run where the owner's files are not to be seen."""


def spark_place(
    master: str | None = None, remote: str | None = None, environment: Mapping[str, str] = os.environ
) -> SparkPlace:
    """The command line, else `spark-submit`, else SPARK_REMOTE, else Spark within this process."""
    if master is None and remote is None:
        if "PYSPARK_GATEWAY_PORT" in environment:
            SparkContext._ensure_initialized()
            return SparkPlace(elsewhere=not _is_local(SparkConf().get("spark.master") or ""))
        remote = environment.get("SPARK_REMOTE") or None
        master = "local[*]" if remote is None else None
    return SparkPlace(master, remote, remote is not None or not _is_local(master or ""))


def open_session(place: SparkPlace, options: Mapping[str, str] | None = None) -> SparkSession:
    """Secrets are in none of the session's settings: those show up in event logs and web pages."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # else workers start whatever Python is on PATH
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    builder = SparkSession.builder
    if place.remote is not None:
        return builder.appName("frazil").remote(place.remote).getOrCreate()
    if place.master is not None:
        builder = (
            builder.appName("frazil")
            .master(place.master)
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.python.worker.reuse", "true")
            .config("spark.task.maxFailures", "3")
        )
        for name, value in (options or {}).items():
            builder = builder.config(name, value)
        address = driver_address(place.master)
        if address is not None:
            builder = builder.config("spark.driver.host", address).config("spark.driver.bindAddress", address)
            os.environ.setdefault("SPARK_LOCAL_IP", address)  # the JVM looks at it before it has any settings
    if place.master is not None and SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _start_gateway(builder._options)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _start_gateway(options: Mapping[str, str]) -> None:
    """Start the JVM in a session of its own: a signal to our whole process group is for us to answer.

    Else the JVM and its Python workers end under a job that runs, and each prints a stack trace. It ends when its stdin
    is closed, so also when we are killed.
    """
    conf = SparkConf()
    for name, value in options.items():
        conf.set(name, str(value))
    SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"start_new_session": True}))  # type: ignore[no-untyped-call]


def end_gateway() -> None:
    """End the JVM of this process, if it has one, and wait until it is gone: it holds our stderr open."""
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with contextlib.suppress(Exception):  # a dead one can't be asked, and need not be
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(GATEWAY_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session of its own, with its Python workers
        process.wait()


def driver_address(master: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """The address of this host from which the master is reached, so that executors reach us there too: loopback stays
    loopback. None leaves it to Spark: it was told by SPARK_LOCAL_IP, or the master has no address (YARN)."""
    if "SPARK_LOCAL_IP" in environment:
        return None
    if _is_local(master):
        return "127.0.0.1"
    first = urlsplit(master.removeprefix("k8s://").split(",")[0])
    try:
        host, port = first.hostname, first.port or PORT_OF_ANY_KIND
    except ValueError:
        return None
    if host is None:
        return None
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)  # sends nothing: the system only chooses the way
            return str(probe.getsockname()[0])
    except OSError:
        return None  # Spark will say what is wrong with the master


def task_count(session: SparkSession, wanted: int | None) -> Callable[[], int]:
    """How many tasks a job has: as the settings say, else one for each core that Spark has at the time.

    Behind Spark Connect there is only a job to find out, so it is asked once: into how many parts the server cuts by
    itself.
    """
    if wanted is not None:
        return lambda: wanted
    if hasattr(session, "_sc"):
        return lambda: max(TASKS_MIN, session.sparkContext.defaultParallelism)
    parts = session.range(100_000).select(sql.spark_partition_id().alias("part")).agg(sql.max("part")).collect()
    count = max(TASKS_MIN, int(parts[0][0]) + 1)
    return lambda: count


def warm_up(session: SparkSession) -> None:
    """The first job of a JVM and the imports of its workers take seconds: have them behind us."""
    run_tasks(session, [[]])


def is_alive(session: SparkSession) -> bool:
    """Whether Spark runs a job that has no work."""
    try:
        warm_up(session)
    except Exception:  # noqa: BLE001 - whatever it is, Spark can't run a job
        return False
    return True


def run_tasks(session: SparkSession, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
    """Run all tasks as one job; an error of any is the error of all, and nothing was committed."""
    if not tasks:
        return []
    frame = session.range(0, len(tasks), 1, len(tasks))
    moved = frame.mapInArrow(run_in_task(tasks), "output binary")  # type: ignore[arg-type]
    return [pickle.loads(row.output) for row in moved.collect()]  # noqa: S301 - made by our own tasks


def _is_local(master: str) -> bool:
    return master.startswith("local")

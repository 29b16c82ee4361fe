"""The pipeline's Spark session, in this process, on a cluster or behind Spark Connect, and the job it runs.

A session that `spark-submit` prepared is used unchanged: its caller sets master, addresses and everything else.
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

from frazil.pipeline.move.tasks import RangeInput, RangeOutput, run_in_task

TASKS_MIN = 2
PORT_OF_ANY_KIND = 7077
GATEWAY_END_SECONDS_MAX = 5.0
DAEMON = "frazil.pipeline.spark.daemon"


@dataclass(frozen=True, slots=True)
class SparkPlace:
    """Where jobs run. With neither master nor remote, `spark-submit` decides."""

    master: str | None = None
    remote: str | None = None
    elsewhere: bool = False
    """Whether tasks may run where the owner's files are not visible."""


def spark_place(
    master: str | None = None, remote: str | None = None, environment: Mapping[str, str] = os.environ
) -> SparkPlace:
    """Use the command line, else `spark-submit`, else SPARK_REMOTE, else an embedded Spark."""
    if master is None and remote is None:
        if "PYSPARK_GATEWAY_PORT" in environment:
            SparkContext._ensure_initialized()
            return SparkPlace(elsewhere=not _is_local(SparkConf().get("spark.master") or ""))
        remote = environment.get("SPARK_REMOTE") or None
        master = "local[*]" if remote is None else None
    return SparkPlace(master, remote, remote is not None or not _is_local(master or ""))


def open_session(place: SparkPlace, options: Mapping[str, str] | None = None) -> SparkSession:
    """No session setting contains secrets: settings are shown in event logs and web pages."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)  # otherwise workers start whatever Python is on PATH
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
        if _is_local(place.master):  # executors elsewhere may get Frazil only with a task
            builder = builder.config("spark.python.daemon.module", DAEMON)
        for name, value in (options or {}).items():
            builder = builder.config(name, value)
        address = driver_address(place.master)
        if address is not None:
            builder = builder.config("spark.driver.host", address).config("spark.driver.bindAddress", address)
            os.environ.setdefault("SPARK_LOCAL_IP", address)  # the JVM reads it before it has any settings
    if place.master is not None and SparkContext._gateway is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        _start_gateway(builder._options)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _start_gateway(options: Mapping[str, str]) -> None:
    """Start the JVM in its own session: this process handles signals to the process group.

    Otherwise the JVM and its Python workers end during a running job, and each prints a stack trace. It ends when its
    stdin is closed, so also when we are killed.
    """
    conf = SparkConf()
    for name, value in options.items():
        conf.set(name, str(value))
    SparkContext._ensure_initialized(gateway=launch_gateway(conf, {"start_new_session": True}))  # type: ignore[no-untyped-call]


def end_gateway() -> None:
    """End the JVM of this process, if it has one, and wait for its end: it holds our stderr open."""
    gateway = SparkContext._gateway
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:
        return
    with contextlib.suppress(Exception):  # a dead JVM can't be asked, and need not be
        gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(GATEWAY_END_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # it leads its own session, with its Python workers
        process.wait()


def driver_address(master: str, environment: Mapping[str, str] = os.environ) -> str | None:
    """Return the address of this host from which the master is reached, so that executors reach us there too: loopback
    stays loopback. None leaves it to Spark: SPARK_LOCAL_IP is set, or the master has no address (YARN)."""
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
            probe.connect(address)  # sends nothing: the system only chooses a route
            return str(probe.getsockname()[0])
    except OSError:
        return None  # Spark will report what is wrong with the master


def task_count(session: SparkSession, wanted: int | None) -> Callable[[], int]:
    """Return the number of tasks of a job: from the settings, else one for each core that Spark has now.

    Behind Spark Connect only a job can find out, so it is asked once: into how many parts the server splits by default.
    """
    if wanted is not None:
        return lambda: wanted
    if hasattr(session, "_sc"):
        return lambda: max(TASKS_MIN, session.sparkContext.defaultParallelism)
    parts = session.range(100_000).select(sql.spark_partition_id().alias("part")).agg(sql.max("part")).collect()
    count = max(TASKS_MIN, int(parts[0][0]) + 1)
    return lambda: count


def warm_up(session: SparkSession) -> None:
    """The first job of a JVM and the imports of its workers take seconds: run them in advance."""
    run_tasks(session, [[]])


def is_alive(session: SparkSession) -> bool:
    """Whether Spark runs an empty job."""
    try:
        warm_up(session)
    except Exception:  # noqa: BLE001 - whatever it is, Spark can't run a job
        return False
    return True


def run_tasks(session: SparkSession, tasks: Sequence[Sequence[RangeInput]]) -> list[RangeOutput]:
    """Run all tasks as one job; an error of any task fails all, and nothing was committed."""
    if not tasks:
        return []
    frame = session.range(0, len(tasks), 1, len(tasks))
    moved = frame.mapInArrow(run_in_task(tasks), "output binary")  # type: ignore[arg-type]
    return [pickle.loads(row.output) for row in moved.collect()]  # noqa: S301 - made by our own tasks


def _is_local(master: str) -> bool:
    return master.startswith("local")

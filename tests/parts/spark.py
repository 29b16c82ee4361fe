"""Spark beyond one process: a standalone cluster of two workers, and a Spark Connect server, all on loopback.

The workers have a mount namespace of their own, in which one folder is empty: what a test keeps there, they can't see.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pyspark

from parts.jvm import spark_options
from parts.processes import accepts, free_port, running

SPARK = Path(pyspark.__file__).parent
ENVIRONMENT = {
    "SPARK_LOCAL_IP": "127.0.0.1",
    "SPARK_HOME": str(SPARK),
    "PYSPARK_PYTHON": sys.executable,
}
DAEMONS = {
    **ENVIRONMENT,
    "SPARK_DAEMON_MEMORY": "256m",
    "JDK_JAVA_OPTIONS": " ".join(spark_options()),  # executors inherit it
}
WORKERS = 2
EXECUTOR = "CoarseGrainedExecutorBackend"


@dataclass(frozen=True, slots=True)
class SparkCluster:
    master: str
    hidden: Path
    """The folder that is empty for the workers."""
    workers: tuple[int, ...]

    def executors(self) -> list[psutil.Process]:
        """The JVMs that run tasks now; each is a child of its worker."""
        found = []
        for worker in self.workers:
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [child for child in psutil.Process(worker).children(recursive=True) if _is_executor(child)]
        return found


def _is_executor(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
        return any(EXECUTOR in word for word in process.cmdline())
    return False


@contextlib.contextmanager
def spark_cluster(folder: Path) -> Iterator[SparkCluster]:
    hidden, port = folder / "hidden", free_port()
    hidden.mkdir(parents=True)
    spark_class = SPARK / "bin" / "spark-class"
    master = [spark_class, "org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", str(port)]
    with contextlib.ExitStack() as started:
        log = folder / "master.log"
        started.enter_context(
            running([*master, "--webui-port", "0"], DAEMONS, log, lambda: _says(log, "I have been elected leader"))
        )
        workers = [started.enter_context(_worker(folder, hidden, port, number)) for number in range(WORKERS)]
        yield SparkCluster(f"spark://127.0.0.1:{port}", hidden, tuple(workers))
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _worker(folder: Path, hidden: Path, port: int, number: int) -> Iterator[int]:
    log = folder / f"worker-{number}.log"
    worker = (
        f"mount -t tmpfs none {hidden} && exec {SPARK}/bin/spark-class org.apache.spark.deploy.worker.Worker"
        f" --host 127.0.0.1 --cores 1 --memory 1g --webui-port 0 --work-dir {folder}/work-{number}"
        f" spark://127.0.0.1:{port}"
    )
    command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", worker]
    with running(command, DAEMONS, log, lambda: _says(log, "Successfully registered with master")) as process:
        yield process.pid


@contextlib.contextmanager
def spark_connect(folder: Path) -> Iterator[str]:
    """The address of a Spark Connect server, as `--remote` takes it."""
    folder.mkdir(parents=True)
    events = folder / "events"
    events.mkdir()
    port = free_port()
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.ui.enabled": "false",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
    }
    given = [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]
    server = "org.apache.spark.sql.connect.service.SparkConnectServer"
    command = [SPARK / "bin" / "spark-submit", "--master", "local[2]", *given, "--class", server, "spark-internal"]
    with running(command, ENVIRONMENT, folder / "server.log", lambda: accepts(port)):
        yield f"sc://127.0.0.1:{port}"
    shutil.rmtree(folder, ignore_errors=True)


def _says(log: Path, words: str) -> bool:
    return words in log.read_text(encoding="utf-8", errors="replace")

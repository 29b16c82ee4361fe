"""A served folder with senders of telemetry at all its doors, while the server, the mover or the executors are killed:
each row that was acknowledged is in its table once, and one of an unknown outcome at most once for each attempt."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest

import frazil
from frazil.core.settings import make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.node.movers.table_progress import status_path
from parts.danube import Server
from parts.movers import Place, command, environment, run, wait_until
from parts.otlp_load import KEYS, PAUSE_SECONDS, PLACES, READINGS, Load, Where, assert_exactly_once
from parts.processes import free_port, pause
from parts.spark import SparkCluster

CHILD = Path(__file__).with_name("telemetry_mover_child.py")
CALM: Any = {"places": 2, "pause_s": 0.3}
"""A load beside which a JVM can start."""
END_SECONDS_MAX = 30
"""Processes of one that was killed end within this time, by themselves."""


class LoadedServer(Server):
    """A server for senders that stay up: its doors are where they were after each start. The lake is elsewhere."""

    def __init__(self, folder: Path, lake: Path, *, moves: bool = False) -> None:
        lake.mkdir()
        self.moves = moves
        self.grpc_port, self.otlp_port = free_port(), free_port()
        otlp = {"grpc_port": self.grpc_port, "http_port": self.otlp_port}
        sections = {
            "telemetry": {"enabled": True, "freshness_ms": 300, "otlp": otlp},
            "writer": {"flush_interval_ms": 300},
            "wal": {"max_file_size": 256 * 1024},
            "pipeline": {"lease_ms": 1_000},
            "catalog": {"uri": f"sqlite:///{lake}/catalog.db"},
            "object_store": {"path": str(lake / "warehouse")},
        }
        super().__init__(folder, others=sections)
        data, given = folder / "data", json.loads(self._config.read_text(encoding="utf-8"))
        self.place = Place(data, self._config, make_settings({**given, "data": data}))
        address = f"127.0.0.1:{self.grpc_port}"
        http, flight = f"http://127.0.0.1:{self.otlp_port}", f"grpc://127.0.0.1:{self.flight_port}"
        self.where = Where(address, http, flight)

    def family(self) -> list[psutil.Process]:
        """What the server has started: its mover, and the processes of that."""
        assert self.process is not None
        return psutil.Process(self.process.pid).children(recursive=True)


class MoverProcess:
    """A mover of its own, beside the server, which can be killed and started again."""

    def __init__(self, words: Sequence[str], log: Path) -> None:
        self._words, self._log = list(words), log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as errors:
            self.process = subprocess.Popen(
                self._words, env=environment(), stdout=subprocess.DEVNULL, stderr=errors, start_new_session=True
            )

    def family(self) -> list[psutil.Process]:
        return [] if self.process is None else psutil.Process(self.process.pid).children(recursive=True)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait(END_SECONDS_MAX)

    def stop(self) -> int:
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(END_SECONDS_MAX)

    def close(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(END_SECONDS_MAX)

    def log(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")


class Scene:
    """A server under load, and its mover: its child, or a process of its own."""

    def __init__(self, server: LoadedServer, mover: MoverProcess | None, load: Load, seed: int) -> None:
        self.server, self.mover, self.load = server, mover, load
        self.rng = random.Random(seed)
        self.killed: Counter[str] = Counter()

    def ends(self) -> dict[str, int]:
        """How far the tables are, as the mover has told last."""
        try:
            status: dict[str, Any] = json.loads(status_path(self.server.place.settings).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        known = {**(status.get("known") or {}), **(status.get("topics") or {})}
        return {name: one["table_end"] for name, one in known.items() if one.get("table_end") is not None}

    def moves_on(self) -> None:
        """Wait until rows reach the tables that they did not have a moment ago."""
        before = sum(self.ends().values())
        wait_until(lambda: sum(self.ends().values()) > before and self.load.acknowledged > 0)

    def sends_on(self, count: int = 50) -> None:
        before = self.load.acknowledged
        wait_until(lambda: self.load.acknowledged >= before + count)

    def kill_server(self) -> None:
        """At any moment: while it serves, while its mover starts, plans, runs a job or commits.

        A mover of its own has found the server: one that starts without a server would own the folder itself.
        """
        self.sends_on()
        if self.mover is not None or self.rng.random() < 0.6:
            self.moves_on()
        pause(self.rng.uniform(0, 1.5))
        family = self.server.family()
        self.server.kill()
        self.killed["server"] += 1
        pause(self.rng.uniform(0, 0.5))
        self.server.start()
        _gone(family)

    def kill_mover(self) -> None:
        self._kill_of_mover("mover", lambda mover: mover.kill())

    def kill_jvm(self) -> None:
        """The processor's JVM: the mover ends, and says why."""

        def kill(mover: MoverProcess) -> None:
            for jvm in [one for one in mover.family() if one.name() == "java"]:
                jvm.kill()
            assert mover.process is not None
            assert mover.process.wait(END_SECONDS_MAX) != 0

        self._kill_of_mover("jvm", kill)

    def _kill_of_mover(self, what: str, kill: Callable[[MoverProcess], None]) -> None:
        assert self.mover is not None
        self.moves_on()
        pause(self.rng.uniform(0, 0.8))
        family = self.mover.family()
        kill(self.mover)
        self.killed[what] += 1
        self.mover.start()
        _gone(family)

    def kill_executor(self, cluster: SparkCluster) -> None:
        """An executor, or the Python worker that runs its task."""
        self.moves_on()
        pause(self.rng.uniform(0, 0.6))
        wait_until(lambda: bool(cluster.executors()))
        victim, what = self.rng.choice(cluster.executors()), "executor"
        workers = _workers(victim)
        if workers and self.rng.random() < 0.5:
            victim, what = self.rng.choice(workers), "worker"
        victim.kill()
        psutil.wait_procs([victim], timeout=END_SECONDS_MAX)
        self.killed[what] += 1

    def drain(self) -> None:
        """Wait until the tables have all that is in the log."""
        with frazil.connect(self.server.where.flight) as storage:
            wanted = {name: storage.topic(name, create=False).stats().end for name in storage.topics()}
        wait_until(lambda: all(self.ends().get(name, 0) >= end for name, end in wanted.items()))


def _gone(family: Sequence[psutil.Process]) -> None:
    _, left = psutil.wait_procs(family, timeout=END_SECONDS_MAX)
    _end(left)
    assert not left, f"they outlive the process that has started them: {left}"


def _end(left: Sequence[psutil.Process]) -> None:
    for one in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(left, timeout=END_SECONDS_MAX)


def _workers(executor: psutil.Process) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return [one for daemon in executor.children() for one in daemon.children()]
    return []


@contextlib.contextmanager
def scene(
    server: LoadedServer, mover: MoverProcess | None, places: int = len(PLACES), pause_s: float = PAUSE_SECONDS
) -> Iterator[Scene]:
    """All processes have ended afterwards, however the test has ended. The moments of the kills follow from a seed,
    which `--randomly-seed` repeats."""
    seed = random.getrandbits(32)
    print(f"seed {seed}")
    try:
        server.start()
        if mover is not None:
            mover.start()
        with Load(server.where, seed, PLACES[:places], pause_s) as load:
            load.everybody_goes_on()
            yield Scene(server, mover, load, seed)
    finally:
        left = []
        with contextlib.suppress(psutil.NoSuchProcess):
            left += server.family()
        if mover is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                left += mover.family()
            mover.close()
        server.kill()
        _end(left)


def end(now: Scene) -> None:
    """Let the load end and the mover finish, and prove all tables."""
    now.load.everybody_goes_on()
    sent = now.load.stop()
    now.drain()
    if now.mover is not None:
        assert now.mover.stop() == 0
    assert now.server.stop() == 0
    assert "Traceback" not in now.server.log()
    place = now.server.place
    found = by_iceberg(place)
    assert_exactly_once(sent, found)
    rows = {table: keys.total() for table, keys in found.items()}
    assert by_duckdb(place) == rows
    assert proven(place) == rows
    doubtful = sum(1 for one in sent if one.unknown)
    print(f"{dict(now.killed)} killed; {len(sent)} requests, {doubtful} of them doubtful, {sum(rows.values())} rows")


Rows = dict[tuple[str, str], int]
"""How many rows a table has."""


def tables(place: Place) -> list[tuple[str, str]]:
    """Every table of the catalog, whatever its namespace."""
    folder = place.settings.object_store.path
    assert folder is not None
    with contextlib.closing(sqlite3.connect(folder.parent / "catalog.db")) as catalog:
        return catalog.execute("select table_namespace, table_name from iceberg_tables").fetchall()


def by_iceberg(place: Place) -> dict[tuple[str, str], Counter[str]]:
    """How often each key is in each table; those of errors are empty."""
    catalog, found = open_catalog(place.settings), {}
    for name in tables(place):
        key = KEYS.get(name[1], "metric_name")
        if name[1].endswith("__errors"):
            assert catalog.load_table(name).scan().count() == 0
            continue
        columns = (key, "_offset") if name[1] == READINGS else (key, "_offset", "_index")
        rows = catalog.load_table(name).scan(selected_fields=columns).to_arrow()
        found[name] = Counter(rows[key].to_pylist())
        places = Counter(zip(*(rows[column].to_pylist() for column in columns[1:]), strict=True))
        assert set(places.values()) == {1}, f"rows of {name} are there twice"
    return found


def by_duckdb(place: Place) -> Rows:
    """Count the rows of the files that the current snapshots list."""
    catalog, found = open_catalog(place.settings), Rows()
    with duckdb.connect() as engine:
        for name in tables(place):
            plan = catalog.load_table(name).scan().plan_files()
            if files := [task.file.file_path.removeprefix("file://") for task in plan]:
                query = "select count(*) from read_parquet(?, hive_partitioning = false)"
                ((found[name],),) = engine.execute(query, [files]).fetchall()
    return found


def proven(place: Place) -> Rows:
    """The rows that `frazil verify` has proven to be in the tables."""
    done = run(place, "verify", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    found = Rows()
    for topic in json.loads(done.stdout)["topics"]:
        assert topic["proven"], topic
        namespace, name = topic["topic"].strip("/").split("/")
        moved = topic["tables"] or {name: topic["in_table"]}
        found |= {(namespace, table): rows for table, rows in moved.items()}
    return found


def mover_here(server: LoadedServer, folder: Path) -> MoverProcess:
    words = [sys.executable, str(CHILD), str(server.place.data), str(server.place.config)]
    return MoverProcess(words, folder / "mover.log")


def mover_on_spark(server: LoadedServer, folder: Path, *words: str) -> MoverProcess:
    return MoverProcess(command(server.place, "pipeline", "run", *words), folder / "mover.log")


@pytest.mark.timeout(400)
def test_what_was_acknowledged_is_in_the_tables_once_when_server_and_mover_are_killed(tmp_path: Path) -> None:
    server = LoadedServer(tmp_path / "served", tmp_path / "lake")
    with scene(server, mover_here(server, tmp_path), places=1) as now:
        now.kill_mover()
        now.kill_server()
        end(now)


def rounds(now: Scene, count: int, *kills: Callable[[], None]) -> None:
    """So many kills, of each kind in turn."""
    began = time.monotonic()
    for number in range(count):
        kills[number % len(kills)]()
        print(f"round {number}: {time.monotonic() - began:.0f} s, {now.load.acknowledged} acknowledged", flush=True)
    now.moves_on()


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_what_was_acknowledged_is_in_the_tables_once_over_many_kills_without_spark(tmp_path: Path) -> None:
    server = LoadedServer(tmp_path / "served", tmp_path / "lake")
    with scene(server, mover_here(server, tmp_path)) as now:
        rounds(now, 40, now.kill_server, now.kill_mover)
        end(now)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_what_was_acknowledged_is_in_the_tables_once_over_many_kills_of_a_server_with_its_mover(tmp_path: Path) -> None:
    server = LoadedServer(tmp_path / "served", tmp_path / "lake", moves=True)
    with scene(server, None, **CALM) as now:
        rounds(now, 20, now.kill_server)
        end(now)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_what_was_acknowledged_is_in_the_tables_once_over_many_kills_of_the_processor(tmp_path: Path) -> None:
    server = LoadedServer(tmp_path / "served", tmp_path / "lake")
    with scene(server, mover_on_spark(server, tmp_path), **CALM) as now:
        rounds(now, 20, now.kill_mover, now.kill_jvm)
        end(now)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_what_was_acknowledged_is_in_the_tables_once_over_many_killed_executors(
    spark_hosts: SparkCluster, tmp_path: Path
) -> None:
    server = LoadedServer(spark_hosts.hidden / tmp_path.name, tmp_path / "lake")
    mover = mover_on_spark(server, tmp_path, "--master", spark_hosts.master)
    with scene(server, mover, **CALM) as now:
        rounds(now, 20, lambda: now.kill_executor(spark_hosts))
        end(now)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_what_was_acknowledged_is_in_the_tables_once_over_many_kills_of_all_in_turn(
    spark_hosts: SparkCluster, tmp_path: Path
) -> None:
    """Executors read the rows from the server: they cannot see its files."""
    server = LoadedServer(spark_hosts.hidden / tmp_path.name, tmp_path / "lake")
    mover = mover_on_spark(server, tmp_path, "--master", spark_hosts.master)
    with scene(server, mover, **CALM) as now:
        rounds(now, 20, now.kill_server, lambda: now.kill_executor(spark_hosts), now.kill_server, now.kill_mover)
        end(now)

"""The owner of requests of telemetry and their mover killed at random moments: every row of every request that was
acknowledged is in its table once, and every request that cannot be decoded is an error once."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from telemetry_child import ERRORS_EVERY, KINDS, TOPICS, request

from frazil.core.settings import make_settings
from frazil.lake.catalogs.opening import open_catalog
from frazil.telemetry.signals import Signal

CHILD = Path(__file__).with_name("telemetry_child.py")
NAMESPACE = "crash.default"
Rows = dict[str, Counter[tuple[int, int | None]]]


@contextlib.contextmanager
def child(folder: Path, *what: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, str(CHILD), str(folder), *what]
    with (folder.parent / "child.log").open("a") as errors:
        started = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True)
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(30)
        assert started.stdout is not None
        started.stdout.close()


def kill_round(folder: Path, rng: random.Random, acknowledged: dict[str, int], *remote: str) -> None:
    """Kill the child after some ticks, at any moment of the next: plan, job, between the commits of two tables."""
    with child(folder, "publish", *remote) as started:
        assert started.stdout is not None
        ticks, wanted = 0, rng.randint(2, 5)
        while ticks < wanted:
            line = started.stdout.readline()
            assert line, "the child ended by itself"
            said = json.loads(line)
            ticks += "ticked" in said and said["ticked"] > 0
            assert not said.get("failures"), said
        threading.Event().wait(rng.uniform(0, 0.6))
        os.killpg(started.pid, signal.SIGKILL)
        started.wait(30)
        for line in [line for line in started.stdout if line.endswith("\n")]:
            said = json.loads(line)
            if "acknowledged" in said:
                acknowledged[said["topic"]] = max(acknowledged.get(said["topic"], 0), said["acknowledged"])


def run_rounds(folder: Path, rounds: int, *remote: str) -> None:
    rng, acknowledged = random.Random(rounds), dict[str, int]()
    for _ in range(rounds):
        kill_round(folder, rng, acknowledged, *remote)
    with child(folder, "drain", *remote) as drain:
        out, _ = drain.communicate(timeout=300)
    assert drain.returncode == 0
    ends: dict[str, int] = json.loads(out.splitlines()[-1])
    assert all(ends[topic] >= end for topic, end in acknowledged.items()), "an acknowledged request is lost"
    assert min(ends.values()) > 100
    wanted = expected(ends)
    assert by_iceberg(folder, wanted) == wanted
    assert by_duckdb(folder, wanted) == wanted


def expected(ends: dict[str, int]) -> Rows:
    """The rows of all requests, by table."""
    found: Rows = {}

    def add(table: str, offset: int, index: int | None) -> None:
        found.setdefault(table, Counter())[offset, index] += 1

    for topic, what in TOPICS.items():
        for offset in range(ends[topic]):
            if offset % ERRORS_EVERY == ERRORS_EVERY - 1:
                add(f"{what}__errors", offset, None)
            elif what is Signal.TRACES:
                for index in range(offset % 4):
                    add("traces", offset, index)
            else:
                for at, kind in enumerate(KINDS[offset % len(KINDS)]):
                    add("metrics", offset, at)
                    for index in range(2):
                        add(f"metrics_{kind}", offset, 2 * at + index)
    return found


def by_iceberg(folder: Path, tables: Rows) -> Rows:
    catalog = open_catalog(make_settings({"data": folder}))
    found = {}
    for table in tables:
        columns = ("_offset", "_index") if not table.endswith("errors") else ("_offset", "_index", "raw")
        rows = catalog.load_table((NAMESPACE, table)).scan(selected_fields=columns).to_arrow()
        found[table] = Counter(zip(rows["_offset"].to_pylist(), rows["_index"].to_pylist(), strict=True))
        if "raw" in columns:
            assert set(rows["raw"].to_pylist()) == {request(Signal.TRACES, ERRORS_EVERY - 1)}
    return found


def by_duckdb(folder: Path, tables: Rows) -> Rows:
    """Count the rows of the files that the current snapshot lists."""
    catalog, found = open_catalog(make_settings({"data": folder})), {}
    with duckdb.connect() as engine:
        for table in tables:
            plan = catalog.load_table((NAMESPACE, table)).scan().plan_files()
            files = [task.file.file_path.removeprefix("file://") for task in plan]
            query = 'select "_offset", "_index" from read_parquet(?, hive_partitioning = false)'
            found[table] = Counter(engine.execute(query, [files]).fetchall())
    return found


@pytest.mark.timeout(400)
def test_every_request_is_in_the_tables_once_when_owner_and_mover_are_killed(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", rounds=3)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_every_request_is_in_the_tables_once_over_many_kills(tmp_path: Path) -> None:
    run_rounds(tmp_path / "data", rounds=20)


@pytest.mark.long
@pytest.mark.timeout(3_000)
def test_every_request_is_in_the_tables_once_over_many_kills_of_a_mover_on_spark(tmp_path: Path, connect: str) -> None:
    run_rounds(tmp_path / "data", 20, connect)

"""`frazil pipeline` and `frazil serve` with real Spark: every row arrives once, and both end when told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.lake.catalogs.opening import open_catalog
from frazil.log.folder.ownership import SERVE_FILE, owner_of, served_by
from frazil.node.movers.status_file import read_status
from parts.in_process import MoverHere

DEADLINE_SECONDS = 110
TYPED = pa.schema([pa.field("sensor", pa.string(), nullable=False), pa.field("celsius", pa.float64())])

pytestmark = pytest.mark.timeout(300)


def command(data: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "frazil", *arguments, "--data", str(data)]


def run(data: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(data, *arguments), capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment()
    )


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FRAZIL_")}
    return {**kept, "FRAZIL_WRITER__FLUSH_INTERVAL_MS": "200"}


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def fill(data: Path, count: int = 500) -> None:
    with frazil.open(data) as storage:
        storage.topic("/default/orders").publish_many(
            [frazil.Outgoing(f"order {number}", f"k{number % 7}", {"n": str(number)}) for number in range(count)]
        )
        for part in range(2):
            storage.topic(f"/default/split-part-{part}").publish_many([b"x" * number for number in range(50)])
        rows = [{"sensor": f"s{number}", "celsius": number / 2} for number in range(count)]
        storage.topic("/weather/readings", schema=TYPED).publish_many(pa.RecordBatch.from_pylist(rows, schema=TYPED))
        storage.topic("/default/empty")


def in_log(data: Path, topic: str) -> list[dict[str, Any]]:
    with frazil.open(data) as storage:
        return [row for batch in storage.topic(topic, create=False).read_batches() for row in batch.to_pylist()]


def in_table(data: Path, table: str, partition: int = 0) -> list[dict[str, Any]]:
    rows = open_catalog(frazil.Settings(data=data)).load_table(table).scan().to_arrow().to_pylist()
    chosen = sorted((row for row in rows if row.pop("_topic_partition") == partition), key=lambda row: row["_offset"])
    assert len({row["_offset"] for row in chosen}) == len(chosen)
    return chosen


def wait_until(true: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    poll = threading.Event()
    while not true():
        assert process.poll() is None, "it ended"
        assert time.monotonic() < end, "it takes too long"
        poll.wait(0.1)


def test_once_moves_all_rows_and_again_moves_nothing(tmp_path: Path) -> None:
    fill(tmp_path)
    before_us = SystemClock().now_us()
    before = answer(run(tmp_path, "pipeline", "status", "--json"))
    assert before["mover"] == "never ran"
    assert {one["topic"]: one["lag_rows"] for one in before["topics"]} == {
        "/default/empty": 0, "/default/orders": 500, "/default/split-part-0": 50, "/default/split-part-1": 50,
        "/weather/readings": 500,
    }  # fmt: skip
    assert not (tmp_path / "catalog.db").exists()
    first = answer(run(tmp_path, "pipeline", "run", "--once", "--json"))
    assert (first["rows"], first["commits"]) == (1_100, 3)
    assert in_table(tmp_path, "default.orders") == in_log(tmp_path, "/default/orders")
    assert in_table(tmp_path, "weather.readings") == in_log(tmp_path, "/weather/readings")
    for part in range(2):
        assert in_table(tmp_path, "default.split", part) == in_log(tmp_path, f"/default/split-part-{part}")
    with frazil.open(tmp_path) as storage:
        again = MoverHere(frazil.Settings(data=tmp_path), storage).tick()
    assert (again.rows, again.commits, again.lag_rows) == (0, 0, 0)
    after = answer(run(tmp_path, "pipeline", "status", "--json"))
    assert after["mover"] == "stopped"
    orders = next(one for one in after["topics"] if one["topic"] == "/default/orders")
    assert (orders["log_end"], orders["table_end"], orders["lag_rows"], orders["lag_ms"]) == (500, 500, 0, 0)
    assert orders["snapshot_id"]
    assert before_us < orders["committed_ms"] * 1_000 < SystemClock().now_us()


def test_a_signal_to_the_whole_process_group_ends_the_mover_quietly(tmp_path: Path) -> None:
    """As a supervisor or a terminal sends it. The pipe of its stderr ends only once its JVM is gone, too."""
    fill(tmp_path, 50)
    settings = frazil.Settings.of_folder(tmp_path)
    with subprocess.Popen(
        command(tmp_path, "pipeline", "run"), stderr=subprocess.PIPE, env=environment(), start_new_session=True
    ) as mover:
        started = psutil.Process(mover.pid)
        try:
            wait_until(lambda: (read_status(settings, SystemClock()) or {}).get("rows", 0) > 0, mover)
            below = started.children(recursive=True)
            assert any("java" in one.name() for one in below)
            os.killpg(mover.pid, signal.SIGTERM)
            _, said = mover.communicate(timeout=DEADLINE_SECONDS)
        finally:
            if mover.poll() is None:
                os.killpg(mover.pid, signal.SIGKILL)
    assert mover.returncode == 0, said.decode()
    assert not [
        line for line in said.decode().splitlines() if "ERROR" in line or "Traceback" in line or "\tat " in line
    ]
    assert not psutil.wait_procs(below, timeout=DEADLINE_SECONDS)[1]
    told = read_status(settings, SystemClock())
    assert told is not None
    assert (told["state"], told["error"]) == ("stopped", None)


def test_serve_moves_rows_starts_a_dead_mover_again_and_stops_with_it(tmp_path: Path, connect: str) -> None:
    """Both movers use one Spark Connect server; `test_secured_pipeline` has one with an embedded Spark."""
    fill(tmp_path)
    settings = frazil.Settings(data=tmp_path)
    arguments = ("serve", "--port", "0", "--flight-port", "0", "--broker-port", "0", "--admin-port", "0", "--log-json")
    remote = {**environment(), "SPARK_REMOTE": connect}
    with subprocess.Popen(command(tmp_path, *arguments), env=remote, stderr=subprocess.PIPE) as process:
        try:
            wait_until(lambda: served_by(settings) is not None, process)
            wait_until(lambda: moved(settings, 1_100), process)
            first = psutil.Process(mover_pid(settings))
            assert first.ppid() == process.pid
            status = answer(run(tmp_path, "pipeline", "status", "--json"))
            assert (status["mover"], status["mover_pid"]) == ("running", first.pid)
            assert {one["lag_rows"] for one in status["topics"]} == {0}
            first.kill()
            wait_until(lambda: mover_pid(settings) != first.pid, process)
            wait_until(lambda: (read_status(settings, SystemClock()) or {}).get("state") == "running", process)
            second = psutil.Process(mover_pid(settings))
            family = [second, *second.children(recursive=True)]
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=30)
            assert process.returncode == 0, error.decode()
            assert b"Traceback" not in error
            assert b"the mover ended with code -9; it is started again in 1 s" in error
            _, alive = psutil.wait_procs(family, timeout=10)
            assert not alive
        finally:
            process.kill()
    assert not (tmp_path / SERVE_FILE).exists()
    assert owner_of(settings) is None
    assert in_table(tmp_path, "default.orders") == in_log(tmp_path, "/default/orders")
    assert in_table(tmp_path, "weather.readings") == in_log(tmp_path, "/weather/readings")


def moved(settings: frazil.Settings, rows: int) -> bool:
    told = read_status(settings, SystemClock()) or {}
    return bool(told.get("rows", 0) >= rows)


def mover_pid(settings: frazil.Settings) -> int:
    return int((read_status(settings, SystemClock()) or {})["pid"])


def test_a_folder_that_is_owned_but_not_served_is_refused(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic("/default/orders").publish("x")
        (tmp_path / SERVE_FILE).write_text(json.dumps({"pid": 1, "flight": "grpc://127.0.0.1:1"}), encoding="utf-8")
        done = run(tmp_path, "pipeline", "run", "--once")
        assert done.returncode == 6
        assert done.stderr.startswith("error: ")
        assert f"process {os.getpid()}" in done.stderr
        status = answer(run(tmp_path, "pipeline", "status", "--json"))
        assert [one["lag_rows"] for one in status["topics"]] == [1]


def test_without_java_serve_says_so_in_one_line_and_goes_on(tmp_path: Path) -> None:
    without = {**environment(), "JAVA_HOME": str(tmp_path / "no-java")}
    arguments = (
        "serve",
        "--port",
        "0",
        "--flight-port",
        "0",
        "--broker-port",
        "0",
        "--admin-port",
        "0",
        "--json",
        "--log-json",
    )
    with subprocess.Popen(
        command(tmp_path / "data", *arguments), env=without, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["flight"].startswith("grpc://127.0.0.1:")
            process.send_signal(signal.SIGTERM)
            _, error = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == 0
    events = [json.loads(line) for line in error.splitlines()]
    assert ["no Java was found" in event["message"] for event in events].count(True) == 1
    done = subprocess.run(
        command(tmp_path / "data", "pipeline", "run", "--once"), env=without, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: Spark cannot run: no Java was found")
    assert done.stderr.count("\n") == 1

"""A catalog that is down when the server starts: every place operators look at says so, and shows what it knows."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.clock import SystemClock
from frazil.core.disk.json_file import write_json
from frazil.log.folder.ownership import served_by
from frazil.node.movers.status_file import read_status, status_path

DEADLINE_SECONDS = 110
REPORTED_SECONDS_MAX = 60  # it takes a few, on a machine that has them
TOPIC = "/shop/orders"

pytestmark = pytest.mark.timeout(300)


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FRAZIL_")}


def run(config: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "frazil", *arguments, "--config", str(config)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment())


def wait_until(true: Callable[[], object], process: subprocess.Popen[bytes], seconds: float) -> None:
    end, poll = time.monotonic() + seconds, threading.Event()
    while not true():
        assert process.poll() is None, "it ended"
        assert time.monotonic() < end, "it takes too long"
        poll.wait(0.1)


def get(address: str, path: str) -> tuple[int, str]:
    with urllib.request.urlopen(f"{address}{path}", timeout=30) as answer:
        return answer.status, answer.read().decode()


@pytest.fixture
def nobody() -> Iterator[int]:
    """A port that is taken and answers nobody: connections are refused."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


@pytest.fixture
def config(tmp_path: Path, nobody: int) -> Path:
    path = tmp_path / "frazil.yaml"
    ports = "http: {port: 0}\nflight: {port: 0}\nbroker: {port: 0}\n"
    path.write_text(
        f"data: {tmp_path / 'data'}\n{ports}catalog: {{type: rest, uri: 'http://127.0.0.1:{nobody}'}}\n",
        encoding="utf-8",
    )
    return path


def test_a_catalog_that_is_down_shows_everywhere_while_publishing_goes_on(config: Path) -> None:
    settings = frazil.core.settings.load_settings(config)
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        topic.publish_many([b"tea"] * 10)
        told = {"log_id": topic.log.log_id, "table_end": 7, "error": None}
    write_json(status_path(settings), {"state": "stopped", "time_us": 5, "topics": {TOPIC: told}})
    command = [sys.executable, "-m", "frazil", "serve", "--config", str(config)]
    with subprocess.Popen(command, env=environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
        try:
            wait_until(lambda: served_by(settings), process, DEADLINE_SECONDS)
            address = (served_by(settings) or {})["http"]
            wait_until(lambda: state(settings) == "waiting", process, REPORTED_SECONDS_MAX)
            check_health(address)
            check_status(run(config, "pipeline", "status", "--json"), "waiting")
            doctor = run(config, "doctor", "--json")
            found = {one["name"]: one for one in json.loads(doctor.stdout)}
            assert doctor.returncode == 1
            assert [found[name]["state"] for name in ("lake", "mover", "server")] == ["fail", "warn", "warn"]
            assert "catalog.uri" in found["lake"]["text"]
            assert run(config, "produce", TOPIC, "milk").returncode == 0
        finally:
            process.terminate()
            _, error = process.communicate(timeout=30)
    assert process.returncode == 0
    assert b"Traceback" not in error
    check_status(run(config, "pipeline", "status", "--json"), "stopped", log_end=11)
    text = run(config, "pipeline", "status").stdout
    assert "the last known ends are shown" in text
    assert TOPIC in text


def state(settings: frazil.Settings) -> str | None:
    return (read_status(settings, SystemClock()) or {}).get("state")


def check_health(address: str) -> None:
    code, answer = get(address, "/health/ready")
    told = json.loads(answer)
    assert (code, told["status"]) == (200, "ready")
    (warning,) = told["warnings"]
    assert warning["error"] == "lake_unavailable"
    assert "catalog.uri" in warning["message"]
    assert warning["next_try_us"] > warning["since_us"]
    metrics = get(address, "/metrics")[1]
    assert "frazil_mover_failing 1.0" in metrics
    assert "frazil_mover_alive 1.0" in metrics


def check_status(done: subprocess.CompletedProcess[str], mover: str, log_end: int = 10) -> None:
    assert done.returncode == 4, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["mover"] == mover
    assert told["lake_error"]
    (topic,) = told["topics"]
    assert (topic["log_end"], topic["table_end"], topic["lag_rows"]) == (log_end, 7, log_end - 7)
    assert topic["table_time_us"] == 5
    assert topic["lag_ms"] > 0
    if mover == "waiting":
        assert "catalog.uri" in told["error"]
        assert told["next_try_us"] > told["since_us"]


def test_a_mover_alone_waits_and_goes_on_once_the_catalog_is_there(tmp_path: Path) -> None:
    folder, config = tmp_path / "later", tmp_path / "frazil.yaml"
    uri = f"sqlite:///{folder / 'catalog.db'}"
    config.write_text(f"data: {tmp_path / 'data'}\ncatalog: {{uri: '{uri}'}}\n", encoding="utf-8")
    settings = frazil.core.settings.load_settings(config)
    with frazil.open(settings) as storage:
        storage.topic(TOPIC).publish("tea")
    once = run(config, "pipeline", "run", "--once")
    assert once.returncode == 1
    assert "catalog.uri" in once.stderr
    assert (read_status(settings, SystemClock()) or {})["error"]
    command = [sys.executable, "-m", "frazil", "pipeline", "run", "--config", str(config)]
    with (
        (tmp_path / "stderr").open("wb") as stderr,
        subprocess.Popen(command, env=environment(), stderr=stderr, start_new_session=True) as process,
    ):
        try:
            wait_until(lambda: state(settings) == "waiting", process, REPORTED_SECONDS_MAX)
            folder.mkdir()
            wait_until(lambda: state(settings) in ("starting", "running"), process, REPORTED_SECONDS_MAX)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    said = (tmp_path / "stderr").read_text(encoding="utf-8")
    assert "it is asked again until it answers" in said
    assert "Traceback" not in said

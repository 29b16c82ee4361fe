"""A served folder and movers that are processes of their own, for tests of what happens between them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import FlightSettings, Settings, make_settings
from frazil.doors.flight.door import flight_door
from frazil.lake.catalogs.opening import open_catalog
from frazil.log.folder.ownership import published_addresses, served_by
from frazil.node.movers.status_file import read_status

DEADLINE_SECONDS = 240
TOPIC = "/default/orders"
TABLE = "default.orders"
SECRET = "a-s3cret-that-nobody-prints"


@dataclass(frozen=True, slots=True)
class Place:
    """A data folder, and a catalog and a warehouse that are elsewhere, told by a file."""

    data: Path
    config: Path
    settings: Settings


def make_place(data: Path, folder: Path, **sections: Any) -> Place:
    """The lake is in `folder`; the settings hold a secret, which must show up nowhere."""
    folder.mkdir(parents=True, exist_ok=True)
    lake = {
        "catalog": {"uri": f"sqlite:///{folder}/catalog.db", "properties": {"token": SECRET}},
        "object_store": {"path": str(folder / "warehouse")},
        "writer": {"flush_interval_ms": 200},
        "pipeline": {"lease_ms": 2_000},
        "flight": {"port": 0},
        **sections,
    }
    config = folder / "frazil.yaml"
    config.write_text(json.dumps(lake), encoding="utf-8")
    return Place(data, config, make_settings({**lake, "data": data}))


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(("FRAZIL_", "SPARK_LOCAL"))}


def command(place: Place, *arguments: str) -> list[str]:
    words = [sys.executable, "-m", "frazil", *arguments, "--config", str(place.config)]
    return words if "--owner" in arguments else [*words, "--data", str(place.data)]


def run(place: Place, *arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(place, *arguments),
        capture_output=True, text=True, timeout=DEADLINE_SECONDS, env=environment(), cwd=cwd,
    )  # fmt: skip


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


@contextlib.contextmanager
def process(place: Place, log: Path, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """Its stderr is in `log`. A process of its own group: what it started ends with it."""
    with log.open("wb") as errors:
        started = subprocess.Popen(
            command(place, *arguments), env=environment(), stdout=subprocess.DEVNULL, stderr=errors,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield started
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
        started.wait(30)


@contextlib.contextmanager
def served(place: Place, log: Path) -> Iterator[dict[str, Any]]:
    """The folder behind `frazil serve` without a mover of its own; the addresses of the doors."""
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
        "--no-pipeline",
        "--log-json",
    )
    with process(place, log, *arguments) as owner:
        wait_until(lambda: served_by(place.settings) is not None, owner)
        yield served_by(place.settings) or {}


@contextlib.contextmanager
def publishing(place: Place, pause_s: float = 0.05) -> Iterator[Publisher]:
    """This process owns and serves the folder, as `frazil serve` does, and publishes without pause."""
    with (
        frazil.open(place.settings) as storage,
        flight_door(storage, FlightSettings(port=0), movers=True) as door,
        published_addresses(place.settings, {"flight": door.address}),
    ):
        publisher = Publisher(storage, pause_s)
        publisher.start()
        try:
            yield publisher
        finally:
            publisher.end()


class Publisher(threading.Thread):
    def __init__(self, storage: frazil.Storage, pause_s: float) -> None:
        super().__init__(name="publisher", daemon=True)
        self._topic = storage.topic(TOPIC)
        self._pause_s = pause_s
        self._stop_asked = threading.Event()
        self.count = 0

    def run(self) -> None:
        while not self._stop_asked.wait(self._pause_s):
            self._topic.publish_many([payload(number) for number in range(self.count, self.count + 100)])
            self.count += 100

    def end(self) -> int:
        """How many rows there are in the end."""
        self._stop_asked.set()
        self.join()
        return self.count


def told(place: Place) -> dict[str, Any]:
    """What the leader tells; nothing while there is none that runs."""
    found = read_status(place.settings, SystemClock()) or {}
    return found if found.get("state") == "running" else {}


def moved(place: Place) -> int:
    """How many rows the table has, as the last leader told."""
    found = read_status(place.settings, SystemClock()) or {}
    return int(found.get("topics", {}).get(TOPIC, {}).get("table_end", 0))


def wait_until(true: Callable[[], bool], *processes: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + DEADLINE_SECONDS
    poll = threading.Event()
    while not true():
        assert all(one.poll() is None for one in processes), "it ended"
        assert time.monotonic() < end, "it takes too long"
        poll.wait(0.05)


def publish(data: Path, count: int) -> None:
    with frazil.open(data) as storage:
        storage.topic(TOPIC).publish_many([payload(number) for number in range(count)])


def payload(number: int) -> bytes:
    return f"order {number} ".encode() + b"x" * (number % 100)


def assert_every_row_once(place: Place, count: int) -> None:
    rows: pa.Table = open_catalog(place.settings).load_table(TABLE).scan().to_arrow().sort_by("_offset")
    assert rows["_offset"].to_pylist() == list(range(count))
    assert rows["_payload"].to_pylist() == [payload(number) for number in range(count)]

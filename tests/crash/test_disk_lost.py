"""A server is killed and its data folder removed: it is restored from the objects, and goes on exactly once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.cli.main import main
from frazil.core.settings import Settings, settings_of
from frazil.node.opening import open_to_move
from frazil.node.tiers.objects import object_store_of
from frazil.objects.known import ObjectsOfLogs
from parts.in_process import MoverHere
from parts.processes import accepts, free_port, pause, running

TOPIC = "/shop/orders"
FIRST, SECOND = 300, 100
UPLOAD_SECONDS_MAX = 60.0


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Objects and tables are on another disk than the data folder."""
    path = tmp_path / "frazil.yaml"
    store = {"type": "local", "path": str(tmp_path / "bucket")}
    content: dict[str, Any] = {
        "data": str(tmp_path / "data"),
        "objects": {"enabled": True, "store": store, "open_interval_ms": 50},
        "catalog": {"type": "sql", "uri": f"sqlite:///{tmp_path / 'catalog.db'}"},
        "object_store": {"type": "local", "path": str(tmp_path / "lake")},
        "wal": {"max_file_size": 64 * 1024},
        "broker": {"port": free_port()},
        "http": {"port": free_port()},
        "flight": {"port": free_port()},
    }
    path.write_text(json.dumps(content))
    return path


@contextlib.contextmanager
def served(config: Path, log: Path) -> Iterator[tuple[int, str]]:
    """A server's process; yields its pid and the address of its Flight door."""
    port = json.loads(config.read_text())["flight"]["port"]
    command = [sys.executable, "-m", "frazil", "serve", "--config", config, "--no-pipeline"]
    with running(command, {}, log, lambda: accepts(port)) as process:
        yield process.pid, f"grpc://127.0.0.1:{port}"


def message(number: int) -> bytes:
    return f"{number}:".encode() + b"x" * 1_000


def until(reached: Callable[[], bool]) -> None:
    end = time.monotonic() + UPLOAD_SECONDS_MAX
    while not reached():
        assert time.monotonic() < end, "it does not happen"
        pause(0.1)


def uploaded_end(settings: Settings) -> int:
    objects = ObjectsOfLogs(object_store_of(settings))
    return max((objects.of(log_id).load().end for log_id in objects.store.folders("")), default=0)


@contextlib.contextmanager
def connected(address: str) -> Iterator[frazil.RemoteTopic]:
    """A client whose producer numbers its messages."""
    with frazil.connect(address, producer="till") as remote:
        yield remote.topic(TOPIC)


def test_a_lost_disk_loses_nothing_that_was_uploaded_and_stores_nothing_twice(config: Path, tmp_path: Path) -> None:
    settings = settings_of(config)
    assert settings.data is not None
    with served(config, tmp_path / "first.log") as (pid, address):
        with connected(address) as topic:
            for number in range(FIRST):
                assert topic.publish(message(number)) == number
        until(lambda: uploaded_end(settings) == FIRST)
        os.killpg(pid, signal.SIGKILL)
    with open_moved(settings) as mover:  # what was moved before the disk is lost stays in the table
        assert mover.errors() == {TOPIC: None}
    shutil.rmtree(settings.data)

    assert main(["restore", "--config", str(config)]) == 0

    with served(config, tmp_path / "second.log") as (_, address):
        with connected(address) as topic:
            for number in range(FIRST, FIRST + SECOND):
                assert topic.publish(message(number)) == number
            found = [(one.offset, one.payload) for one in topic.read("earliest")]
            assert found == [(number, message(number)) for number in range(FIRST + SECOND)]
        until(lambda: uploaded_end(settings) == FIRST + SECOND)
    with open_moved(settings) as mover:
        assert mover.errors() == {TOPIC: None}
        rows = [(row["_offset"], row["_payload"]) for row in mover.rows(TOPIC)]
        assert rows == [(number, message(number)) for number in range(FIRST + SECOND)]
    assert main(["verify", "--config", str(config)]) == 0


@contextlib.contextmanager
def open_moved(settings: Settings) -> Iterator[MoverHere]:
    with open_to_move(settings) as storage:
        yield MoverHere(settings, storage)

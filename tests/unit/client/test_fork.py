"""A forked child that uses what its parent opened is told so at once; the parent goes on as if nothing had been."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import frazil
from frazil.doors.flight.door import FlightDoor
from parts.moving import HandMover

TOPIC = "/default/orders"
CHILD = Path(__file__).with_name("fork_child.py")
SECONDS_MAX = 100


def said_by(what: str, where: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, str(CHILD), what, where], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout.splitlines()


def stored(topic: frazil.Topic) -> list[bytes]:
    return [message.payload for message in topic.read()]


def test_a_client_of_the_parent_refuses_its_child_and_goes_on(owner: frazil.Storage, door: FlightDoor) -> None:
    refused = [
        "publish",
        "publish_many",
        "open_producer",
        "topic",
        "read",
        "next",
        "follow",
        "subscribe",
        "connect",
        "mover",
        "owner's logs",
        "aio",
    ]
    assert said_by("client", door.address) == [
        "0",
        "b'of the parent'",
        *(f"{call} UsedAfterFork" for call in refused),
        "close went well: None",
        "child 0",
        "1",
        "b'of the parent again'",
    ]
    assert stored(owner.topic(TOPIC)) == [b"of the parent", b"of the parent again"]


def test_a_client_of_asyncio_does_so_too(owner: frazil.Storage, door: FlightDoor) -> None:
    assert said_by("asyncio", door.address) == [
        "0",
        "b'of the parent'",
        "publish UsedAfterFork",
        "stats UsedAfterFork",
        "child 0",
        "1",
    ]
    assert stored(owner.topic(TOPIC)) == [b"of the parent", b"of the parent again"]


def test_a_folder_that_the_parent_owns_is_not_written_by_its_child(tmp_path: Path) -> None:
    refused = ["publish", "publish_many", "open_producer", "sync", "read", "follow", "topic", "delete", "maintain"]
    assert said_by("embedded", str(tmp_path / "data")) == [
        "0",
        "b'of the parent'",
        *(f"{call} UsedAfterFork" for call in refused),
        "close went well: None",
        "open FolderInUse",
        "child 0",
        "True",
        "1",
        "b'of the parent again'",
    ]
    with frazil.open(tmp_path / "data") as storage:
        assert stored(storage.topic(TOPIC)) == [b"of the parent", b"of the parent again"]


def test_tables_that_the_parent_reads_are_not_read_by_its_child(tmp_path: Path) -> None:
    with frazil.open(tmp_path / "data") as storage:
        storage.topic(TOPIC).publish_many(["one", "two"])
        HandMover(frazil.Settings(data=tmp_path / "data")).move(storage.topic(TOPIC))
    refused = ["topics", "topic", "read", "stats", "next", "follow", "wait"]
    assert said_by("read-only", str(tmp_path / "data")) == [
        "2",
        *(f"{call} UsedAfterFork" for call in refused),
        "close went well: None",
        "child 0",
        "2 2",
    ]


def test_a_child_that_outlives_the_owner_does_not_hold_the_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, str(CHILD), "orphan", str(tmp_path / "data")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdin is not None
        assert owner.stdout.readline() == "forked\n"
        assert owner.wait(SECONDS_MAX) == 9
        with frazil.open(tmp_path / "data") as storage:
            assert stored(storage.topic(TOPIC)) == [b"of the parent"]
        owner.stdin.close()


def test_the_error_names_both_processes_and_what_to_do() -> None:
    error = frazil.UsedAfterFork("the connection to grpc://a:1", 7, 8, "connect in each process")
    assert error.fields == {"what": "the connection to grpc://a:1", "made_in": 7, "pid": 8}
    with pytest.raises(frazil.UsedAfterFork, match=r"process 7, and this is process 8.*connect in each"):
        raise error

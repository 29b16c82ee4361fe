"""Two `frazil serve` processes on one etcd and one object store: the owner of a topic is killed, the other goes on."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import frazil
from frazil.core.errors import FrazilError
from parts.danube import Server
from parts.etcd import etcd_server
from parts.processes import pause

TOPIC = "/default/orders"
SERVED_S_MAX = 30.0


class Member(Server):
    """A broker of the cluster."""

    def __init__(self, folder: Path, broker_id: str, endpoint: str, **cluster: int) -> None:
        metadata = {"type": "etcd", "endpoints": endpoint, "prefix": "/failover"}
        others = {
            "objects": {"enabled": True, "store": {"type": "local", "path": str(folder / "objects")}},
            "cluster": {"enabled": True, "broker_id": broker_id, "lease_ms": 2_000, **cluster},
            "pipeline": {"enabled": False},
        }
        super().__init__(folder / broker_id, metadata, others)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[tuple[Member, Member]]:
    with etcd_server(tmp_path / "etcd") as etcd, contextlib.ExitStack() as stack:
        found = Member(tmp_path, "a", etcd.endpoint), Member(tmp_path, "b", etcd.endpoint)
        for one in found:
            one.start()
            stack.callback(one.kill)
        yield found


def published(member: Member, topic: str, payload: str) -> int:
    """Publish at one broker, as soon as it serves the topic."""
    until, problem = time.monotonic() + SERVED_S_MAX, ""
    while time.monotonic() < until:
        try:
            with frazil.connect(member.flight, give_up_ms=2_000) as storage:
                return storage.topic(topic, create=False).publish(payload)
        except FrazilError as error:
            problem = error.message
        pause(0.05)
    raise AssertionError(f"{problem}\n{member.log()[-4000:]}")


def rows(member: Member, topic: str) -> list[tuple[int, str]]:
    with frazil.connect(member.flight) as storage:
        return [(one.offset, one.payload.decode()) for one in storage.topic(topic, create=False).read()]


def test_a_topic_goes_on_at_the_next_offset_when_its_broker_is_killed(members: tuple[Member, Member]) -> None:
    a, b = members
    with frazil.connect(a.flight) as storage:
        orders = storage.create_topic(TOPIC, ack="object")
        assert [orders.publish(f"row {number}") for number in range(20)] == list(range(20))
    assert not (b.folder / "data" / "log" / "default").exists()
    a.kill()
    assert published(b, TOPIC, "after") == 20
    assert rows(b, TOPIC) == [*((number, f"row {number}") for number in range(20)), (20, "after")]

    a.start()  # its folder is of an earlier epoch: it is removed, and the topic stays where it is
    assert published(b, TOPIC, "again") == 21
    for _ in range(200):
        if not (a.folder / "data" / "log" / "default" / "orders").exists():
            break
        pause(0.05)
    assert not (a.folder / "data" / "log" / "default" / "orders").exists()
    assert not (a.folder / "data" / "log" / "~lost").exists(), "all its acknowledged rows are in the store"


def test_a_broker_that_stops_gives_its_topics_away_first(members: tuple[Member, Member]) -> None:
    a, b = members
    with frazil.connect(a.flight) as storage:
        for number in range(3):
            storage.create_topic(f"{TOPIC}-{number}").publish("one")  # on the disk of a alone
    assert a.stop() == 0
    for number in range(3):
        assert published(b, f"{TOPIC}-{number}", "two") == 1
        assert rows(b, f"{TOPIC}-{number}") == [(0, "one"), (1, "two")]

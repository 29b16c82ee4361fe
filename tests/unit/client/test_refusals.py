"""What the log refuses in the midst of a stream: those who sent it are told, the others go on, nothing is doubled."""

from __future__ import annotations

import errno
import threading
from pathlib import Path

import pytest

import frazil
from frazil.core.settings import FlightSettings
from frazil.doors.flight.door import flight_door
from frazil.log.storage import open_storage
from frazil.log.write import producers
from frazil.testing import FaultyDisk

TOPIC = "/default/orders"


def test_a_full_disk_is_told_to_those_it_met_and_the_others_go_on() -> None:
    disk = FaultyDisk()
    acked: dict[int, bytes] = {}
    refused: list[bytes] = []
    with (
        open_storage(frazil.Settings(data=Path("/data")), disk=disk) as owner,
        flight_door(owner, FlightSettings(port=0)) as door,
        frazil.connect(door.address, give_up_ms=20_000) as remote,
    ):
        topic = remote.topic(TOPIC)
        topic.publish("first")

        def publish(name: int) -> None:
            for number in range(60):
                payloads = [f"{name} {number} {at}".encode() for at in range(1 + number % 3)]
                try:
                    acked.update(zip(topic.publish_many(payloads), payloads, strict=True))
                except frazil.DiskFull:
                    refused.extend(payloads)
                if name == 0 and number % 10 == 5:
                    disk.fail("write", errno.ENOSPC)

        threads = [threading.Thread(target=publish, args=(name,)) for name in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert topic.publish("last") == len(acked) + 1
        stored = {message.offset: message.payload for message in owner.topic(TOPIC).read()}
    assert refused
    assert {offset: stored[offset] for offset in acked} == acked
    assert sorted(stored.values()) == sorted([*acked.values(), b"first", b"last"])
    assert not set(refused) & set(stored.values())
    assert len(acked) + len(refused) == 6 * 120


def test_a_log_that_failed_says_so_until_a_restart() -> None:
    disk = FaultyDisk()
    with (
        open_storage(frazil.Settings(data=Path("/data")), disk=disk) as owner,
        flight_door(owner, FlightSettings(port=0)) as door,
        frazil.connect(door.address, give_up_ms=20_000) as remote,
    ):
        topic = remote.topic(TOPIC)
        topic.publish("first")
        disk.fail("sync", errno.EIO)
        for _ in range(2):
            with pytest.raises(frazil.LogFailed) as failed:
                topic.publish("second")
            assert failed.value.topic == TOPIC
        assert [message.payload for message in topic.read()] == [b"first"]


def test_a_producer_that_the_log_has_forgotten_begins_anew(
    owner: frazil.Storage, remote: frazil.RemoteStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More producers than it remembers have come while the stream was quiet."""
    monkeypatch.setattr(producers, "PRODUCERS_MAX", 3)
    topic = remote.topic(TOPIC)
    for number in range(4):
        assert topic.publish_many([f"{number}", "more"]) == frazil.OffsetRange(2 * number, 2 * number + 2)
        for other in range(5):
            owner.topic(TOPIC).open_producer(f"other {other}")
        assert owner.topic(TOPIC).producer_state(remote.producer) is None
    assert [message.payload for message in topic.read()] == [
        payload for number in range(4) for payload in (f"{number}".encode(), b"more")
    ]

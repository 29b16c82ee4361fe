"""What is acknowledged, and what readers see, at the ack levels `memory` and `disk`."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import frazil
from frazil.core.settings import AckLevel
from frazil.log.storage import open_storage
from frazil.testing import FakeClock, FaultyDisk

DATA = Path("/data")


def opened(disk: FaultyDisk, **wal: object) -> frazil.Storage:
    return open_storage(frazil.Settings(data=DATA, wal=frazil.WalSettings(**wal)), disk=disk, clock=FakeClock())


def payloads(topic: frazil.Topic) -> list[bytes]:
    return [message.payload for message in topic.read()]


@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
def test_memory_acknowledges_and_shows_rows_without_a_sync_in_any_sync_mode(mode: str) -> None:
    disk = FaultyDisk()
    storage = opened(disk, sync_mode=mode)
    topic = storage.create_topic("/default/fast", ack="memory")
    topic.publish(b"first")
    disk.fail("sync", 5, times=10**6)
    assert [topic.publish(b"more") for _ in range(3)] == [1, 2, 3]
    assert payloads(topic) == [b"first", b"more", b"more", b"more"]
    assert topic.stats().unsynced == 4


def test_memory_loses_rows_with_a_power_cut_and_disk_does_not() -> None:
    disk = FaultyDisk()
    storage = opened(disk)
    fast, safe = storage.create_topic("/default/fast", ack="memory"), storage.create_topic("/default/safe", ack="disk")
    for topic in (fast, safe):
        for number in range(20):
            topic.publish(b"%d" % number)
    kept = []
    for seed in range(10):
        later = opened(disk.crash(random.Random(seed)))
        assert payloads(later.topic("/default/safe")) == [b"%d" % number for number in range(20)]
        found = payloads(later.topic("/default/fast"))
        assert found == [b"%d" % number for number in range(len(found))]  # always the newest are lost
        kept.append(len(found))
    assert min(kept) < 20


def test_memory_loses_nothing_when_the_process_is_killed() -> None:
    disk = FaultyDisk()
    topic = opened(disk).create_topic("/default/fast", ack="memory")
    for number in range(20):
        topic.publish(b"%d" % number)
    assert payloads(opened(disk.kill()).topic("/default/fast")) == [b"%d" % number for number in range(20)]


def test_sync_makes_rows_of_level_memory_durable() -> None:
    disk = FaultyDisk()
    topic = opened(disk).create_topic("/default/fast", ack="memory")
    topic.publish(b"a")
    topic.publish(b"b")
    assert topic.sync() == 2
    assert payloads(opened(disk.crash(random.Random(1))).topic("/default/fast")) == [b"a", b"b"]


def test_memory_loses_nothing_when_the_storage_is_closed_and_opened() -> None:
    disk = FaultyDisk()
    with opened(disk) as storage:
        storage.create_topic("/default/fast", ack="memory").publish(b"a")
    with opened(disk) as storage:
        topic = storage.topic("/default/fast")
        assert storage.record("/default/fast").ack is topic.log.ack is AckLevel.MEMORY
        assert topic.publish(b"b") == 1
        assert payloads(topic) == [b"a", b"b"]


def test_new_topics_get_the_level_of_the_settings_and_keep_it() -> None:
    disk = FaultyDisk()
    with opened(disk, ack="memory") as storage:
        storage.topic("/default/first")
        storage.create_partitions("/default/many", 2)
        storage.create_topic("/default/own", ack="disk")
    with opened(disk) as storage:
        storage.topic("/default/later")
        levels = {name: storage.record(name).ack.value for name in storage.topics()}
    assert levels == {
        "/default/first": "memory",
        "/default/many-part-0": "memory",
        "/default/many-part-1": "memory",
        "/default/own": "disk",
        "/default/later": "disk",
    }


@pytest.mark.parametrize(("level", "reason"), [("tape", "is not one of"), ("object", "needs objects.enabled")])
def test_a_level_that_cannot_be_kept_is_refused_by_name(level: str, reason: str) -> None:
    storage = opened(FaultyDisk())
    with pytest.raises(frazil.InvalidInput, match=reason) as refused:
        storage.create_topic("/default/t", ack=level)
    assert refused.value.fields["field"] == "ack"
    with pytest.raises(frazil.InvalidInput, match=reason):
        storage.create_partitions("/default/t", 2, ack=level)
    assert storage.topics() == []


def test_the_setting_object_needs_an_object_store() -> None:
    with pytest.raises(ValueError, match=r"objects\.enabled"):
        frazil.Settings(wal=frazil.WalSettings(ack="object"))

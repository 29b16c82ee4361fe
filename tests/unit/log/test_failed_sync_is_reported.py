"""A sync that fails is reported to whoever asked for durability, and stops nothing else."""

from __future__ import annotations

import asyncio
import errno
from pathlib import Path

import pytest

import frazil.aio
from frazil import LogFailed, Settings, SyncMode, WalSettings
from frazil.log.storage import Storage, open_storage
from frazil.testing import FakeClock, FaultyDisk

TOPIC = "/default/orders"


def storage_in(mode: SyncMode, disk: FaultyDisk) -> Storage:
    wal = WalSettings(sync_mode=mode, fsync_interval_ms=100_000, cache_capacity=0)
    return open_storage(Settings(data=Path("/data"), wal=wal), disk=disk, clock=FakeClock())


@pytest.mark.parametrize("mode", [SyncMode.NONE, SyncMode.PERIODIC])
def test_sync_raises_what_the_disk_reported_now_and_from_then_on(mode: SyncMode) -> None:
    disk = FaultyDisk()
    topic = storage_in(mode, disk).topic(TOPIC)
    topic.publish("a")
    disk.fail("sync", errno.EIO)
    for _ in range(2):
        with pytest.raises(LogFailed, match="Input/output error"):
            topic.sync()
    assert topic.stats().durable_end == 0


def test_close_raises_what_the_disk_reported_and_gives_everything_back() -> None:
    disk = FaultyDisk()
    storage = storage_in(SyncMode.PERIODIC, disk)
    bad, good = storage.topic(TOPIC), storage.topic("/default/good")
    bad.publish("a")
    good.publish("b")
    disk.fail("sync", errno.EIO)
    with pytest.raises(LogFailed, match=TOPIC):
        storage.close()
    storage.close()  # closed is closed
    assert good.stats().durable_end == 1, "the other topics are made durable all the same"
    with storage_in(SyncMode.PERIODIC, disk) as again:  # the folder is free
        assert [message.payload for message in again.topic("/default/good").read("earliest")] == [b"b"]


def test_close_reports_a_sync_that_failed_by_the_clock_before() -> None:
    disk = FaultyDisk()
    storage = storage_in(SyncMode.PERIODIC, disk)
    topic = storage.topic(TOPIC)
    topic.publish("a")
    disk.fail("sync", errno.EIO)
    topic.log.flush()  # as the clock does
    disk.mend()
    with pytest.raises(LogFailed):
        topic.publish("b")
    with pytest.raises(LogFailed):
        storage.close()


def test_close_of_the_asyncio_face_raises_it_too() -> None:
    disk = FaultyDisk()

    async def scenario() -> None:
        storage = frazil.aio.Storage(storage_in(SyncMode.PERIODIC, disk))
        await (await storage.topic(TOPIC)).publish("a")
        disk.fail("sync", errno.EIO)
        await storage.close()

    with pytest.raises(LogFailed):
        asyncio.run(scenario())


def test_an_end_that_cannot_be_recorded_at_the_close_is_reported_and_the_folder_given_back() -> None:
    disk = FaultyDisk()
    storage = storage_in(SyncMode.ALWAYS, disk)
    storage.topic(TOPIC).publish("a")
    disk.fail("rename", errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        storage.close()
    with storage_in(SyncMode.ALWAYS, disk) as again:
        assert again.topic(TOPIC).publish("b") == 1


def test_a_topic_whose_log_failed_can_be_deleted() -> None:
    disk = FaultyDisk()
    with storage_in(SyncMode.PERIODIC, disk) as storage:
        topic = storage.topic(TOPIC)
        topic.publish("a")
        disk.fail("sync", errno.EIO)
        with pytest.raises(LogFailed):
            topic.sync()
        storage.delete_topic(TOPIC)
        assert storage.topics() == []

"""What is acknowledged and what readers see, in each sync mode."""

from __future__ import annotations

from pathlib import Path

import pytest

import frazil
from frazil.core.disk.memory import MemoryDisk
from frazil.core.settings import KIB
from frazil.log.storage import open_storage
from frazil.testing import FakeClock


class CountingDisk(MemoryDisk):
    """Counts the syncs of files."""

    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def open(self, path, mode):  # type: ignore[no-untyped-def]
        file = super().open(path, mode)
        inner = file.sync

        def sync() -> None:
            self.syncs += 1
            inner()

        file.sync = sync  # type: ignore[method-assign]
        return file


def opened(disk: MemoryDisk, **wal: object) -> frazil.Storage:
    return open_storage(frazil.Settings(data=None, wal=frazil.WalSettings(**wal)), disk=disk, clock=FakeClock())


def test_always_syncs_before_each_acknowledgement() -> None:
    disk = CountingDisk()
    with opened(disk) as storage:
        topic = storage.topic("/default/a")
        topic.publish(b"first")
        before = disk.syncs
        for count in range(1, 6):
            topic.publish(b"x")
            assert disk.syncs == before + count
            assert topic.stats().durable_end == topic.stats().end == 1 + count


def test_one_group_is_one_sync_however_many_wait() -> None:
    disk = CountingDisk()
    with opened(disk) as storage:
        topic = storage.topic("/default/a")
        topic.publish(b"first")
        before = disk.syncs
        topic.publish_many([b"x"] * 1000)
        assert disk.syncs == before + 1


def test_periodic_acknowledges_at_once_but_shows_only_what_is_synced() -> None:
    disk = CountingDisk()
    with opened(disk, sync_mode="periodic", fsync_interval_ms=60_000) as storage:
        topic = storage.topic("/default/a")
        assert [topic.publish(b"x") for _ in range(3)] == [0, 1, 2]
        assert (topic.stats().end, topic.stats().unsynced) == (0, 3)
        assert list(topic.read()) == []
        assert topic.sync() == 3
        assert [message.offset for message in topic.read()] == [0, 1, 2]
        assert topic.stats().unsynced == 0


def test_periodic_syncs_by_itself_after_the_interval(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(sync_mode="periodic", fsync_interval_ms=5))
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/a")
        topic.publish(b"x")
        assert next(topic.read(follow=True)).payload == b"x"


def test_periodic_syncs_at_once_when_enough_bytes_wait() -> None:
    with opened(CountingDisk(), sync_mode="periodic", fsync_interval_ms=60_000, max_batch_bytes=8 * KIB) as storage:
        topic = storage.topic("/default/a")
        topic.publish(bytes(KIB))
        assert topic.stats().durable_end == 0
        topic.publish(bytes(8 * KIB))
        assert topic.stats().durable_end == 2


def test_none_shows_what_is_written_and_syncs_only_when_asked() -> None:
    disk = CountingDisk()
    with opened(disk, sync_mode="none") as storage:
        topic = storage.topic("/default/a")
        topic.publish(b"first")
        before = disk.syncs
        topic.publish_many([b"x"] * 10)
        assert disk.syncs == before
        assert len(list(topic.read())) == 11
        assert (topic.stats().end, topic.stats().durable_end) == (11, 0)
        assert topic.sync() == 11


@pytest.mark.parametrize("mode", ["always", "periodic", "none"])
def test_a_closed_log_is_whole_in_every_mode(tmp_path: Path, mode: str) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(sync_mode=mode, max_file_size=64 * KIB))
    payloads = [b"%d" % index + bytes(5 * KIB) for index in range(50)]
    with frazil.open(settings) as storage:
        for payload in payloads:
            storage.topic("/default/a").publish(payload)
    with frazil.open(settings) as storage:
        assert [message.payload for message in storage.topic("/default/a").read()] == payloads


def test_a_changed_mode_starts_a_new_segment(tmp_path: Path) -> None:
    for mode in ("always", "periodic", "periodic", "none"):
        settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(sync_mode=mode))
        with frazil.open(settings) as storage:
            storage.topic("/default/a").publish(mode)
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/a")
        assert [segment.base for segment in topic.log.segments] == [0, 1, 3]
        assert [message.payload for message in topic.read()] == [b"always", b"periodic", b"periodic", b"none"]

"""A topic is adopted, and the power goes before each operation of the disk: there is the whole topic, or none."""

from __future__ import annotations

import errno
import random
from pathlib import Path

import pytest
from harness import FakeClock, FaultyDisk, abandon, opened, settings_of

from frazil import Settings, SyncMode
from frazil.core.errors import DiskFull, LogFailed
from frazil.core.sequences import Sent
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.write.producers import Producers, ProducersRecord

TOPIC, OTHER = "/a/messages", "/a/others"
END = 40


def adopted() -> AdoptedLog:
    producers = Producers()
    producers.store(Sent("p", 0, 6), 1, END - 1)
    return AdoptedLog("the-log", END, None, producers, 9_000_000, 1, None, ProducersRecord({"p": 0}, {}, 0))


def is_adopted(disk: FaultyDisk, settings: Settings) -> bool:
    """Whether the topic is there; if not, it can be adopted again, and then it goes on."""
    storage = opened(disk, settings, FakeClock())
    try:
        done = TOPIC in storage.topics()
        if not done:
            assert "~adopting" not in {entry.name for entry in disk.list(settings.log_folder)}
            storage.adopt_topic(TOPIC, adopted())
        assert storage.topics() == [TOPIC, OTHER]
        topic = storage.topic(TOPIC, create=False)
        assert (topic.log.log_id, topic.log.first_offset, topic.log.durable_end) == ("the-log", END, END)
        assert topic.publish_many([b"again"], sent=Sent("p", 0, 6)).start == END - 1  # not stored again
        assert topic.publish_many([b"next"], sent=Sent("p", 0, 7)).start == END
        assert [message.payload for message in storage.topic(OTHER).read("earliest")] == [b"tea"]
        storage.close()
    finally:
        abandon(storage)
    return done


def prepared(settings: Settings) -> FaultyDisk:
    disk = FaultyDisk()
    storage = opened(disk, settings, FakeClock())
    storage.topic(OTHER).publish(b"tea")
    storage.close()
    return disk


def test_a_power_cut_at_any_operation_leaves_the_whole_topic_or_none() -> None:
    settings = settings_of(SyncMode.ALWAYS)
    disk = prepared(settings)
    storage = opened(disk, settings, FakeClock())
    results: list[bool] = []

    def look(operation: str, path: Path) -> None:
        for seed in range(6):
            image = disk.crash(random.Random(disk.operations * 1_000 + seed))
            try:
                results.append(is_adopted(image, settings))
            except BaseException as error:
                error.add_note(f"power cut before operation {disk.operations} ({operation} {path}), seed {seed}")
                raise

    disk.watch(look)
    storage.adopt_topic(TOPIC, adopted())
    disk.watch(None)
    abandon(storage)
    assert is_adopted(disk.crash(random.Random(1)), settings)  # it is durable once the call has returned
    assert results[0] is False
    assert results[-1] is True
    assert len(results) > 100


@pytest.mark.parametrize("operation", ["create", "write", "sync", "rename", "make_folder", "sync_folder"])
def test_a_disk_error_at_any_operation_leaves_the_whole_topic_or_none(operation: str) -> None:
    settings = settings_of(SyncMode.ALWAYS)
    for after in range(100):
        disk = prepared(settings)
        storage = opened(disk, settings, FakeClock())
        disk.fail(operation, errno.EIO, after=after)  # type: ignore[arg-type]
        failed = False
        try:
            storage.adopt_topic(TOPIC, adopted())
        except (OSError, LogFailed):
            failed = True
        missed = bool(disk.failures_left)
        disk.mend()
        abandon(storage)
        is_adopted(disk.kill(), settings)
        if missed:
            assert after > 0
            return
        assert failed or operation in ("make_folder", "sync_folder")
    raise AssertionError("it never ends")


def test_a_full_disk_leaves_no_topic_and_its_room() -> None:
    settings = settings_of(SyncMode.ALWAYS)
    disk = prepared(settings)
    storage = opened(disk, settings, FakeClock())
    before = storage.budget.used_bytes
    disk.fail("write", errno.ENOSPC, after=1)
    with pytest.raises(DiskFull):
        storage.adopt_topic(TOPIC, adopted())
    assert storage.topics() == [OTHER]
    assert storage.budget.used_bytes == before
    storage.adopt_topic(TOPIC, adopted())
    assert storage.budget.used_bytes > before
    abandon(storage)

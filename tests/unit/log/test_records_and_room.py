"""What is recorded about a topic: it follows the disk, survives a full one, and outlives the rows it describes."""

from __future__ import annotations

import contextlib
import errno
import logging
from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil import CorruptLog, DiskFull, FrazilError, RetentionSettings, Settings, WalSettings
from frazil.core.disk import File, LocalDisk
from frazil.log.folder.catalog import TRASH_FOLDER
from frazil.log.storage import open_storage
from frazil.testing import FakeClock, FaultyDisk

KIB = 1024
SECOND_US = 1_000_000
TOPIC = "/shop/orders"
LOG = Path("/data/log")
SCHEMA = pa.schema([pa.field("amount", pa.int64())])


def settings(**wal: object) -> Settings:
    return Settings(data="/data", wal=WalSettings(max_file_size=64 * KIB, cache_capacity=0, **wal))  # type: ignore[arg-type]


def read_bytes(disk: FaultyDisk, path: Path) -> bytes:
    file = disk.open(path, "read")
    return file.read(file.size(), 0)


def replace_bytes(disk: FaultyDisk, path: Path, data: bytes) -> None:
    file = disk.open(path, "write")
    file.truncate(0)
    file.write([data], 0)
    file.sync()


@pytest.mark.parametrize(
    ("operation", "error"), [("create", errno.ENOSPC), ("create", errno.EMFILE), ("sync", errno.EIO)]
)
def test_an_end_that_could_not_be_recorded_is_recorded_the_next_time(operation: str, error: int) -> None:
    disk, clock = FaultyDisk(), FakeClock()
    with open_storage(settings(), disk=disk, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        topic.publish("one")
        storage.maintain()
        (name,) = [entry.name for entry in disk.list(LOG / "shop/orders") if entry.name.endswith(".wal")]
        older_copy = read_bytes(disk, LOG / "shop/orders" / name)
        topic.publish("two")
        disk.fail(operation, error)  # type: ignore[arg-type]
        with contextlib.suppress(FrazilError, OSError):
            storage.maintain()
        assert disk.failures_left == 0
    replace_bytes(disk, LOG / "shop/orders" / name, older_copy)
    with open_storage(settings(), disk=disk, clock=clock) as storage, pytest.raises(CorruptLog, match="acknowledged"):
        storage.topic(TOPIC)


def test_a_deleted_topic_with_folders_in_it_is_removed_with_them(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic(TOPIC).publish("tea")
        copy = tmp_path / "log/shop/orders/copy/of a copy"
        copy.mkdir(parents=True)
        (copy / "00000000000000000000.wal").write_bytes(b"bytes")
        (copy / "link").symlink_to(tmp_path)
        (tmp_path / "log/shop/orders/00000000000000000007.wal").mkdir()
        storage.delete_topic(TOPIC)
        assert storage.topics() == []
        assert list((tmp_path / "log/~trash").iterdir()) == []
    assert tmp_path.is_dir()


def test_a_folder_named_like_a_segment_is_none(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        storage.topic(TOPIC).publish("tea")
    (tmp_path / "log/shop/orders/00000000000000000007.wal").mkdir()
    with frazil.open(tmp_path) as storage:
        assert storage.topic(TOPIC).publish("milk") == 1


@pytest.mark.parametrize("operation", ["remove", "remove_folder", "sync_folder"])
def test_what_cannot_be_removed_from_the_trash_keeps_nobody_out_and_is_tried_again(
    operation: str, caplog: pytest.LogCaptureFixture
) -> None:
    disk, clock = FaultyDisk(), FakeClock()
    with open_storage(settings(), disk=disk, clock=clock) as storage:
        storage.topic(TOPIC).publish("tea")
        storage.topic("/shop/other").publish("milk")
    disk.make_folder(LOG / "~trash")
    disk.rename(LOG / "shop/orders", LOG / "~trash/left by a crash")
    disk.make_folder(LOG / "~trash/left by a crash/copy")
    disk.fail(operation, errno.EIO, after=2 if operation == "sync_folder" else 0, times=2)  # type: ignore[arg-type]
    with caplog.at_level(logging.WARNING), open_storage(settings(), disk=disk, clock=clock) as storage:
        assert storage.topic("/shop/other").publish("more") == 1
        disk.mend()
        storage.maintain()
        assert disk.list(LOG / "~trash") == []
    if operation != "sync_folder":
        assert "~trash" in caplog.text


# --- a full disk


def fill(topic: frazil.Topic) -> None:
    for size in (8_000, 500, 1):
        with contextlib.suppress(DiskFull):
            for _ in range(10_000):
                topic.publish(b"x" * size)


def take_the_rest(ballast: File) -> None:
    """Another program on the same disk takes the last bytes."""
    step = 1 << 16
    while step:
        try:
            ballast.allocate(ballast.size(), step)
        except OSError:
            step //= 2


def spare_bytes(disk: FaultyDisk) -> int:
    return sum(entry.size_bytes for entry in disk.list(LOG) if entry.name == "~spare")


def test_clients_of_a_full_disk_do_not_use_up_the_room_that_retention_needs() -> None:
    disk, clock = FaultyDisk(capacity_bytes=700 * KIB), FakeClock()
    storage = open_storage(settings(), disk=disk, clock=clock)
    topic = storage.topic(TOPIC)
    typed = storage.topic("/shop/typed", schema=SCHEMA)
    fill(topic)
    ballast = disk.open(Path("/data/ballast"), "create")
    take_the_rest(ballast)
    for number in range(5):
        with contextlib.suppress(FrazilError):
            topic.open_producer(f"client {number} " * 10)
        with contextlib.suppress(FrazilError):
            storage.create_topic(f"/shop/more{number}")
        with contextlib.suppress(FrazilError):
            storage.change_schema(typed.name, pa.schema([*SCHEMA, pa.field(f"more{number}", pa.string())]))
        take_the_rest(ballast)
    with contextlib.suppress(FrazilError):
        storage.maintain()
    assert spare_bytes(disk) == 64 * KIB
    storage.set_retention(TOPIC, RetentionSettings(age_ms=1))
    clock.advance(10 * SECOND_US)
    storage.maintain()
    assert topic.stats().first_offset > 0
    assert topic.publish(b"x" * 8_000) == topic.stats().end - 1
    storage.maintain()
    assert spare_bytes(disk) == 64 * KIB, "the room is held again"
    storage.close()


def test_the_only_segment_of_a_topic_goes_too_on_a_full_disk() -> None:
    disk, clock = FaultyDisk(capacity_bytes=150 * KIB), FakeClock()
    with open_storage(settings(retention=RetentionSettings(age_ms=1_000)), disk=disk, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        topic.publish(b"x" * 40_000)
        take_the_rest(disk.open(Path("/data/ballast"), "create"))
        clock.advance(10 * SECOND_US)
        storage.maintain()
        assert topic.stats().first_offset == 1
        assert topic.publish(b"x" * 40_000) == 1


def test_a_topic_can_be_deleted_on_a_full_disk() -> None:
    disk, clock = FaultyDisk(capacity_bytes=300 * KIB), FakeClock()
    with open_storage(settings(), disk=disk, clock=clock) as storage:
        topic, other = storage.topic(TOPIC), storage.topic("/shop/other")
        topic.publish("one")
        storage.maintain()  # what `~ends` says of it must be rewritten before it goes
        fill(topic)
        take_the_rest(disk.open(Path("/data/ballast"), "create"))
        with pytest.raises(DiskFull):
            other.publish(b"x" * 10_000)
        storage.delete_topic(TOPIC)
        assert other.publish(b"x" * 10_000) == 0


# --- time


@pytest.mark.parametrize("rows_again", [False, True])
def test_append_times_do_not_step_back_though_no_row_is_left_and_the_clock_was_set_back(rows_again: bool) -> None:
    disk, clock = FaultyDisk(), FakeClock()
    where = settings(retention=RetentionSettings(age_ms=1_000))
    with open_storage(where, disk=disk, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        topic.publish("a")
        (before,) = topic.read("earliest")
        clock.advance(2 * SECOND_US)
        storage.maintain()
        assert topic.stats().first_offset == 1
    clock.step_wall(-3_600 * SECOND_US)
    for _ in range(1 + rows_again):
        with open_storage(where, disk=disk, clock=clock) as storage:
            storage.topic(TOPIC).publish("b")
    with open_storage(where, disk=disk, clock=clock) as storage:
        times = [message.append_time for message in storage.topic(TOPIC).read("earliest")]
        assert times == sorted(times)
        assert times[0] >= before.append_time


def test_a_topic_whose_deletion_took_effect_and_failed_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = LocalDisk.rename

    def fails_afterwards(disk: LocalDisk, source: Path, target: Path) -> None:
        rename(disk, source, target)
        if target.parent.name == TRASH_FOLDER:
            raise OSError(errno.EIO, "Input/output error")

    with frazil.open(tmp_path) as storage:
        storage.topic("/default/orders").publish("tea")
        monkeypatch.setattr(LocalDisk, "rename", fails_afterwards)
        storage.delete_topic("/default/orders")
        assert storage.topics() == []
        assert storage.topic("/default/orders").publish("cake") == 0

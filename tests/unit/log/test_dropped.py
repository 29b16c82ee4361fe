"""What retention removes without a table to hold it is recorded durably before it goes."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest

import frazil
from frazil.core.disk import LocalDisk
from frazil.core.offsets import OffsetRange
from frazil.core.settings import KIB, RetentionSettings
from frazil.log.folder.catalog import read_topic_record
from frazil.log.folder.layout import topic_folder
from frazil.log.format.records import read_record, write_record
from frazil.log.info import as_json, from_json, log_info, logs_from_files
from frazil.log.retention.dropped import DROPPED_MAX, DroppedRange, dropped_ranges, with_dropped
from frazil.log.storage import Storage, open_storage
from frazil.testing import FaultyDisk
from parts.moving import Floor, open_guarded

TOPIC = "/default/a"
SMALL = RetentionSettings(bytes=1)
OTHER = RetentionSettings(bytes=2)


def settings(folder: Path) -> frazil.Settings:
    return frazil.Settings(data=folder, wal=frazil.WalSettings(max_file_size=64 * KIB))


def fill(storage: Storage, count: int = 60) -> None:
    for _ in range(count):
        storage.topic(TOPIC).publish(bytes(4 * KIB))


def test_rows_removed_without_a_table_are_told_as_dropped_in_every_view(tmp_path: Path) -> None:
    with frazil.open(settings(tmp_path)) as storage:
        fill(storage)
        storage.set_retention(TOPIC, SMALL)
        storage.maintain()
        first = storage.topic(TOPIC).stats().first_offset
        assert first > 0
        own = log_info(storage, TOPIC)
        assert own.dropped == (OffsetRange(0, first),)
        assert from_json(json.loads(json.dumps(as_json(own)))).dropped == own.dropped
        assert logs_from_files(LocalDisk(), tmp_path / "log")[0][0].dropped == own.dropped
    with frazil.open(settings(tmp_path)) as storage:
        assert log_info(storage, TOPIC).dropped == own.dropped
        (record,) = storage.record(TOPIC).dropped
        assert record == DroppedRange(OffsetRange(0, first), SMALL), "with the policy that was applied"
        fill(storage)
        storage.maintain()
        later = storage.topic(TOPIC).stats().first_offset
        assert later > first
        assert storage.record(TOPIC).dropped == (DroppedRange(OffsetRange(0, later), SMALL),), "they are joined"


def test_rows_that_a_table_holds_are_not_dropped(tmp_path: Path) -> None:
    floor = Floor()
    with open_guarded(settings(tmp_path), floor) as storage:
        fill(storage)
        floor.ends[storage.topic(TOPIC).log.log_id] = 40
        storage.set_retention(TOPIC, SMALL)
        storage.maintain()
        first = storage.topic(TOPIC).stats().first_offset
        assert 0 < first <= 40
        assert log_info(storage, TOPIC).dropped == ()
        storage.remove_guard(floor)
        storage.maintain()
        assert log_info(storage, TOPIC).dropped == (OffsetRange(first, storage.topic(TOPIC).stats().first_offset),)


def test_what_is_dropped_is_durable_before_it_goes(tmp_path: Path) -> None:
    disk = FaultyDisk()
    with open_storage(settings(Path("/data")), disk=disk) as storage:
        fill(storage)
        storage.set_retention(TOPIC, SMALL)
        disk.fail("remove", errno.EIO, times=1)
        storage.maintain()  # the first segment could not be removed
        first = storage.topic(TOPIC).stats().first_offset
        record = read_topic_record(disk, Path("/data/log"), storage.topic(TOPIC).log.name)
        assert (record.first_offset, dropped_ranges(record.dropped)) == (first, (OffsetRange(0, first),))


def test_a_record_from_before_there_were_dropped_ranges_has_none(tmp_path: Path) -> None:
    with frazil.open(settings(tmp_path)) as storage:
        fill(storage)
        storage.set_retention(TOPIC, SMALL)
        storage.maintain()
        name = storage.topic(TOPIC).log.name
    path = topic_folder(tmp_path / "log", name) / "topic.json"
    content = read_record(LocalDisk(), path)
    assert content is not None
    del content["dropped"]
    write_record(LocalDisk(), path, content)
    with frazil.open(settings(tmp_path)) as storage:
        assert storage.topic(TOPIC).stats().first_offset > 0
        assert log_info(storage, TOPIC).dropped == ()


@pytest.mark.parametrize("bad", [{"start": 5, "end": 5}, {"start": "x", "end": 9}, {"end": 3}, 7])
def test_a_record_with_a_range_that_is_none_is_refused(tmp_path: Path, bad: object) -> None:
    with frazil.open(settings(tmp_path)) as storage:
        name = storage.topic(TOPIC).log.name
    path = topic_folder(tmp_path / "log", name) / "topic.json"
    content = read_record(LocalDisk(), path)
    assert content is not None
    write_record(LocalDisk(), path, {**content, "dropped": [bad]})
    with pytest.raises(frazil.CorruptLog, match="not a topic record"):
        read_topic_record(LocalDisk(), tmp_path / "log", name)


def test_ranges_join_whatever_policy_dropped_them_and_their_number_is_bounded() -> None:
    dropped: tuple[DroppedRange, ...] = ()
    for at in range(2 * DROPPED_MAX):
        dropped = with_dropped(dropped, DroppedRange(OffsetRange(at, at + 1), OTHER if at % 2 else SMALL))
    assert len(dropped) == DROPPED_MAX
    assert dropped_ranges(dropped) == (OffsetRange(DROPPED_MAX, 2 * DROPPED_MAX),)

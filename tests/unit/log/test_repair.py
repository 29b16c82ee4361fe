"""`frazil.log.repair.repair`: cut at the first bad byte, keep what is cut, and be repeatable after any crash."""

from __future__ import annotations

import contextlib
import errno
import os
import random
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pytest

import frazil
from frazil.core.disk import Disk, File, LocalDisk
from frazil.core.errors import CorruptLog, FolderInUse, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings, Settings, WalSettings
from frazil.log.repair.check import State, check
from frazil.log.repair.repair import repair
from frazil.log.repair.survey import SegmentFrames
from frazil.log.storage import open_storage
from frazil.testing import FaultyDisk, PowerCut

TOPIC = "/default/orders"


def settings_of(data: Path) -> Settings:
    return Settings(data=data, wal=WalSettings(max_file_size=64 * 1024))


def write_log(data: Path, batches: int = 10, disk: Disk | None = None) -> Path:
    """Frames of three rows in several segments; returns the topic's folder."""
    with open_storage(settings_of(data), disk=disk) as storage:
        topic = storage.topic(TOPIC)
        for number in range(batches):
            topic.publish_many([b"%d-%d " % (number, row) + bytes(6_000) for row in range(3)])
    return data / "log" / "default" / "orders"


def payloads(data: Path, disk: Disk | None = None) -> list[bytes]:
    with open_storage(settings_of(data), disk=disk) as storage:
        return [message.payload.split(b" ")[0] for message in storage.topic(TOPIC, create=False).read()]


def written(rows: int) -> list[bytes]:
    return [b"%d-%d" % divmod(row, 3) for row in range(rows)]


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def frames(path: Path) -> list[tuple[int, int]]:
    """Position and offset of every frame of a segment."""
    segment = SegmentFrames(LocalDisk(), path)
    try:
        return [(frame.position, frame.offset) for frame in segment]
    finally:
        segment.close()


def all_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "~owner"}


def test_a_whole_log_needs_no_repair_and_keeps_every_byte(tmp_path: Path) -> None:
    write_log(tmp_path)
    before = all_bytes(tmp_path)
    assert repair(settings_of(tmp_path), TOPIC).plan.steps == []
    assert all_bytes(tmp_path) == before


def test_a_bad_middle_segment_is_cut_there_and_all_behind_it_set_aside(tmp_path: Path) -> None:
    first, second, *later = sorted(write_log(tmp_path).glob("*.wal"))
    position, offset = frames(second)[2]
    flip(second, position + 500)
    whole = {path.name: path.read_bytes() for path in [second, *later]}
    done = repair(settings_of(tmp_path), TOPIC)
    assert (done.plan.end, done.plan.rows_cut) == (offset, 30 - offset - 3)
    assert done.after is not None
    assert (done.after.state, done.after.rows) == (State.OK, offset)
    assert sorted(path.name for path in first.parent.glob("*.wal")) == [first.name, second.name]
    kept = second.with_name(f"{second.stem}.{position}.cut").read_bytes()
    assert second.read_bytes() + kept == whole[second.name]
    for path in later:
        assert path.with_name(path.name + ".cut").read_bytes() == whole[path.name]
    assert payloads(tmp_path) == written(offset)


def test_after_a_repair_the_log_goes_on_at_the_recovered_end(tmp_path: Path) -> None:
    segments = sorted(write_log(tmp_path).glob("*.wal"))
    position, offset = frames(segments[1])[1]
    flip(segments[1], position + 500)
    repair(settings_of(tmp_path), TOPIC)
    with frazil.open(settings_of(tmp_path)) as storage:
        assert storage.topic(TOPIC).publish("more") == offset
    assert payloads(tmp_path) == [*written(offset), b"more"]


def test_a_dry_run_says_the_same_and_changes_nothing(tmp_path: Path) -> None:
    segments = sorted(write_log(tmp_path).glob("*.wal"))
    flip(segments[0], frames(segments[0])[1][0] + 500)
    before = all_bytes(tmp_path)
    planned = repair(settings_of(tmp_path), TOPIC, dry_run=True)
    assert all_bytes(tmp_path) == before
    done = repair(settings_of(tmp_path), TOPIC)
    assert [str(step) for step in done.plan.steps] == [str(step) for step in planned.plan.steps]
    assert planned.after is not None
    assert planned.after.state is State.CORRUPT


def test_a_bad_closing_mark_costs_no_row(tmp_path: Path) -> None:
    segments = sorted(write_log(tmp_path).glob("*.wal"))
    flip(segments[0], segments[0].stat().st_size - 4)
    flip(segments[1], segments[1].stat().st_size - 4)
    done = repair(settings_of(tmp_path), TOPIC)
    assert done.plan.rows_cut == 0
    assert done.after is not None
    assert done.after.state is State.OK
    assert payloads(tmp_path) == written(30)
    assert len(list(segments[0].parent.glob("*.cut"))) == 2


def test_a_missing_segment_sets_aside_what_is_behind_the_gap(tmp_path: Path) -> None:
    first, second, *later = sorted(write_log(tmp_path).glob("*.wal"))
    end = int(second.stem)
    second.unlink()
    done = repair(settings_of(tmp_path), TOPIC)
    assert done.plan.end == end
    assert payloads(tmp_path) == written(end)
    assert all(path.with_name(path.name + ".cut").exists() for path in later)
    assert first.exists()


def test_an_unreadable_first_segment_leaves_an_empty_log_that_keeps_its_offset(tmp_path: Path) -> None:
    folder = write_log(tmp_path)
    segments = sorted(folder.glob("*.wal"))
    segments[0].unlink()  # as retention does
    base = int(segments[1].stem)
    broken = segments[1].read_bytes()
    flip(segments[1], 30)
    done = repair(settings_of(tmp_path), TOPIC)
    assert done.plan.end == base
    assert folder.joinpath(f"{segments[1].name}.cut").read_bytes() != broken
    with frazil.open(settings_of(tmp_path)) as storage:
        assert storage.topic(TOPIC).publish("more") == base


def test_a_truncated_last_segment_lowers_what_is_known_of_its_end(tmp_path: Path) -> None:
    last = sorted(write_log(tmp_path).glob("*.wal"))[-1]
    position, offset = frames(last)[-1]
    last.write_bytes(last.read_bytes()[:position])
    with frazil.open(settings_of(tmp_path)) as storage, pytest.raises(CorruptLog):
        storage.topic(TOPIC)
    done = repair(settings_of(tmp_path), TOPIC)
    assert (done.plan.end, done.plan.end_known) == (offset, 30)
    assert payloads(tmp_path) == written(offset)


@pytest.mark.parametrize("content", [None, b"garbage"])
def test_a_lost_topic_record_is_rebuilt_from_the_schema_frames(tmp_path: Path, content: bytes | None) -> None:
    record = write_log(tmp_path) / "topic.json"
    log_id = next(check(LocalDisk(), tmp_path / "log")).log_id
    record.unlink() if content is None else record.write_bytes(content)
    done = repair(settings_of(tmp_path), TOPIC)
    assert done.after is not None
    assert (done.after.state, done.after.log_id) == (State.OK, log_id)
    assert record.with_name("topic.json.cut").exists() == (content is not None)
    assert payloads(tmp_path) == written(30)


def test_the_columns_of_a_typed_topic_come_back_from_its_newest_segment(tmp_path: Path) -> None:
    narrow, wide = pa.schema([("a", pa.int32())]), pa.schema([("a", pa.int64()), ("b", pa.string())])
    with frazil.open(tmp_path) as storage:
        storage.create_topic(TOPIC, schema=narrow).publish_many(pa.record_batch([[1]], schema=narrow))
        storage.change_schema(TOPIC, wide).publish_many(pa.record_batch([[2], ["x"]], schema=wide))
    (tmp_path / "log" / "default" / "orders" / "topic.json").unlink()
    repair(Settings(data=tmp_path), TOPIC)
    with frazil.open(tmp_path) as storage:
        topic = storage.topic(TOPIC, create=False)
        assert topic.schema == wide
        assert [row["a"] for batch in topic.read_batches() for row in batch.to_pylist()] == [1, 2]


def test_a_broken_record_of_ends_is_set_aside(tmp_path: Path) -> None:
    write_log(tmp_path)
    ends = tmp_path / "log" / "~ends"
    ends.write_bytes(b"garbage")
    with pytest.raises(CorruptLog):
        frazil.open(tmp_path)
    repair(settings_of(tmp_path), TOPIC)
    assert ends.with_name("~ends.cut").read_bytes() == b"garbage"
    assert payloads(tmp_path) == written(30)


def test_a_topic_whose_folder_is_gone_is_forgotten(tmp_path: Path) -> None:
    write_log(tmp_path).rename(tmp_path / "elsewhere")
    assert repair(settings_of(tmp_path), TOPIC).after is None
    assert list(check(LocalDisk(), tmp_path / "log")) == []
    with pytest.raises(TopicNotFound):
        repair(settings_of(tmp_path), TOPIC)


def test_a_folder_moved_under_another_name_is_refused_not_cut(tmp_path: Path) -> None:
    folder = write_log(tmp_path)
    folder.rename(folder.with_name("other"))
    before = all_bytes(tmp_path)
    with pytest.raises(CorruptLog, match="move the folder back"):
        repair(settings_of(tmp_path), "/default/other")
    assert all_bytes(tmp_path) == before


def test_a_folder_in_use_is_not_repaired(tmp_path: Path) -> None:
    write_log(tmp_path)
    with frazil.open(tmp_path), pytest.raises(FolderInUse):
        repair(settings_of(tmp_path), TOPIC)


def test_a_topic_that_never_was_is_not_found_and_no_folder_made(tmp_path: Path) -> None:
    with pytest.raises(TopicNotFound):
        repair(settings_of(tmp_path / "absent"), TOPIC)
    assert not (tmp_path / "absent").exists()


def test_the_retention_of_other_topics_is_untouched(tmp_path: Path) -> None:
    segments = sorted(write_log(tmp_path).glob("*.wal"))
    with frazil.open(tmp_path) as storage:
        storage.create_topic("/default/kept", retention=RetentionSettings(bytes=10)).publish("x")
    flip(segments[0], frames(segments[0])[1][0] + 500)
    repair(settings_of(tmp_path), TOPIC)
    (report,) = check(LocalDisk(), tmp_path / "log", [TopicName("default", "kept")])
    assert (report.state, report.rows) == (State.OK, 1)


DATA = Path("/data")


def _broken_disk(kind: str) -> tuple[FaultyDisk, int]:
    """A log with one fault, and the rows before it."""
    disk = FaultyDisk()
    folder = write_log(DATA, disk=disk)
    names = sorted(entry.name for entry in disk.list(folder) if entry.name.endswith(".wal"))
    bases = [int(name.removesuffix(".wal")) for name in names]
    at = {"frame": 1, "head": 1, "first head": 0, "mark": 0}[kind]
    file = disk.open(folder / names[at], "write")
    size = file.size()
    position = {"frame": size // 2, "head": 30, "first head": 30, "mark": size - 4}[kind]
    file.write([bytes([file.read(1, position)[0] ^ 0x40])], position)
    file.sync()
    file.close()
    return disk, {"frame": -1, "head": bases[1], "first head": 0, "mark": 30}[kind]


@pytest.mark.parametrize("kind", ["frame", "head", "first head", "mark"])
def test_a_power_cut_at_any_step_leaves_what_can_be_repaired_again(kind: str) -> None:
    disk, rows = _broken_disk(kind)
    start = disk.crash(random.Random(0))
    whole = repair(settings_of(DATA), TOPIC, disk=start)
    assert rows in (-1, whole.plan.end)
    assert start.operations > 3
    for operations in range(start.operations + 1):
        for seed in range(3):
            running = disk.crash(random.Random(seed))
            running.cut_power_after(operations)
            with contextlib.suppress(PowerCut):
                repair(settings_of(DATA), TOPIC, disk=running)
            running.cut_power_after(None)
            after = running.crash(random.Random(seed))
            assert not _rows_missing(after)
            again = repair(settings_of(DATA), TOPIC, disk=after)
            assert again.after is not None
            assert (again.after.state, again.after.end) == (State.OK, whole.plan.end)
            assert payloads(DATA, after) == written(whole.plan.end)
            assert not _rows_missing(after)


def _rows_missing(disk: FaultyDisk) -> list[bytes]:
    """Rows that are neither in the log nor in anything set aside."""
    folder = DATA / "log" / "default" / "orders"
    found = b""
    for entry in disk.list(folder):
        file = disk.open(folder / entry.name, "read")
        found += file.read(file.size(), 0)
        file.close()
    return [row for row in written(30) if row + b" " not in found]


class UnreadableOnce(LocalDisk):
    """The first read of a segment fails, as on a disk that was away for a moment."""

    def __init__(self) -> None:
        super().__init__()
        self.failed = False

    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> File:
        file = super().open(path, mode)
        return _UnreadableOnce(self, file, path) if path.suffix == ".wal" else file


class _UnreadableOnce:
    def __init__(self, disk: UnreadableOnce, file: File, path: Path) -> None:
        self._disk = disk
        self._file = file
        self._path = path

    def read(self, length: int, position: int) -> bytes:
        if not self._disk.failed:
            self._disk.failed = True
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._path))
        return self._file.read(length, position)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_a_disk_that_does_not_answer_is_no_reason_to_cut(tmp_path: Path) -> None:
    folder = write_log(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    disk = UnreadableOnce()
    with pytest.raises(CorruptLog, match="nothing was changed") as refused:
        repair(settings_of(tmp_path), TOPIC, disk=disk)
    assert disk.failed
    assert refused.value.fields["path"].endswith(".wal")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert not repair(settings_of(tmp_path), TOPIC, disk=disk).plan.steps
    assert payloads(tmp_path) == written(30)

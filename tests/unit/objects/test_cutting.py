"""A segment is cut into objects: each is a valid segment, and together they have the same frames."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from frazil import CorruptLog, Sent, Settings, SyncMode, WalSettings
from frazil.core.disk.memory import MemoryDisk
from frazil.log.format.frames import MARK_BYTES, Frame
from frazil.log.read.segment_reader import FrameStream, SegmentReader
from frazil.log.repair.recovery import scan_segment
from frazil.log.storage import Storage, open_storage
from frazil.log.topic_log import TopicLog
from frazil.log.write.segment import Segment
from frazil.objects.packing import end_of_object, stored_before
from frazil.objects.upload.cutting import SegmentCutter, SegmentPiece
from frazil.testing import FakeClock

TOPIC = "/default/numbers"
SCHEMA = pa.schema([pa.field("value", pa.int64(), nullable=False)])
LARGE = 1 << 30


def numbers(first: int, count: int) -> pa.RecordBatch:
    return pa.record_batch({"value": pa.array(range(first, first + count), pa.int64())}, schema=SCHEMA)


@pytest.fixture(params=[SyncMode.ALWAYS, SyncMode.PERIODIC])
def storage(request: pytest.FixtureRequest) -> Iterator[Storage]:
    wal = WalSettings(max_file_size=256 * 1024, cache_capacity=0, sync_mode=request.param)
    settings = Settings(data=Path("/data"), wal=wal)
    with open_storage(settings, disk=MemoryDisk(), clock=FakeClock()) as opened:
        yield opened


def filled(storage: Storage, batches: int, rows: int = 100, producer: str | None = None) -> TopicLog:
    topic = storage.topic(TOPIC, schema=SCHEMA)
    for index in range(batches):
        sent = None if producer is None else Sent(producer, 0, index * rows)
        topic.publish_many(numbers(index * rows, rows), sent=sent)
        if index % 3 == 2:
            topic.sync()  # in mode `periodic`, a mark precedes the next frame
    topic.sync()
    return topic.log


def ends_of(log: TopicLog) -> list[int]:
    return [*(segment.base for segment in log.segments[1:]), log.durable_end]


def cut(log: TopicLog, bytes_max: int) -> list[SegmentPiece]:
    pieces = []
    for segment, end in zip(log.segments, ends_of(log), strict=True):
        cutter = SegmentCutter(log.context.disk, segment, log.log_id)
        while (piece := cutter.next(end, bytes_max)) is not None:
            pieces.append(piece)
    return pieces


def frames_in(log: TopicLog, path: Path) -> list[Frame]:
    file = log.context.disk.open(path, "read")
    frames = FrameStream(file)
    return list(iter(frames.next, None))


def as_file(piece: SegmentPiece, log: TopicLog, stored: int = 0) -> tuple[MemoryDisk, Segment, bytes]:
    content = piece.content(log.context.disk, stored)
    disk, path = MemoryDisk(), Path(f"/{piece.first:020d}.wal")
    disk.open(path, "create").write([content], 0)
    return disk, Segment(piece.first, path, len(content), len(content), sealed=True, log_id=log.log_id), content


@pytest.mark.parametrize("bytes_max", [4_000, 50_000, LARGE])
def test_objects_have_all_frames_of_the_log_in_order_and_unchanged(storage: Storage, bytes_max: int) -> None:
    log = filled(storage, 400)
    pieces = cut(log, bytes_max)
    assert pieces[0].first == 0
    assert pieces[-1].end == log.durable_end
    assert all(one.end == after.first for one, after in itertools.pairwise(pieces))
    assert len(pieces) > len(log.segments) > 1 if bytes_max < LARGE else len(pieces) == len(log.segments)
    expected = [f.payload for s in log.segments for f in frames_in(log, s.path)[1:] if not f.is_mark]
    found = []
    for piece in pieces:
        disk, segment, content = as_file(piece, log)
        assert len(content) <= bytes_max
        *frames, mark = list(iter(FrameStream(disk.open(segment.path, "read")).next, None))[1:]
        assert mark.is_mark
        assert end_of_object("name", content[-MARK_BYTES:], len(content)) == piece.end
        found += [frame.payload for frame in frames]
    assert found == expected


def test_each_object_is_a_segment_that_reads_on_its_own(storage: Storage) -> None:
    log = filled(storage, 60)
    for piece in cut(log, 20_000):
        disk, segment, _ = as_file(piece, log)
        reader = SegmentReader(disk, segment)
        rows = [value for batch in reader for value in batch.rows.column("value").to_pylist()]
        assert rows == list(range(piece.first, piece.end))
        assert piece.first_time_us <= piece.last_time_us


def test_an_object_carries_the_state_of_the_producers_at_its_first_offset(storage: Storage) -> None:
    log = filled(storage, 120, producer="p")
    pieces = cut(log, 10_000)
    assert len(pieces) > 5
    for piece in pieces:
        disk, segment, _ = as_file(piece, log)
        scan, _ = scan_segment(disk.open(segment.path, "read"), segment, log.log_id)
        state = scan.producers.get("p")
        assert state is not None
        assert state.next_sequence == scan.end == piece.end
        assert state.recent[-1] == (piece.end - 100, piece.end - 100, 100)


def test_a_frame_that_is_larger_than_an_object_becomes_one_alone(storage: Storage) -> None:
    topic = storage.topic(TOPIC, schema=SCHEMA)
    for first, count in ((0, 10), (10, 20_000), (20_010, 10)):
        topic.publish_many(numbers(first, count))
    topic.sync()
    pieces = cut(topic.log, 20_000)
    assert [(one.first, one.end) for one in pieces] == [(0, 10), (10, 20_010), (20_010, 20_020)]
    assert [as_file(one, topic.log)[1].used_bytes > 100_000 for one in pieces] == [False, True, False]


def test_rows_beyond_the_durable_end_are_not_read(storage: Storage) -> None:
    log = filled(storage, 10)
    cutter = SegmentCutter(log.context.disk, log.segments[0], log.log_id)
    piece = cutter.next(500, LARGE)
    assert piece is not None
    assert (piece.first, piece.end) == (0, 500)
    assert cutter.next(500, LARGE) is None
    later = cutter.next(1_000, LARGE)
    assert later is not None
    assert (later.first, later.end) == (500, 1_000)


def test_a_later_owner_cuts_the_same_objects_after_what_is_stored(storage: Storage) -> None:
    log = filled(storage, 60, producer="p")
    pieces = [one for one in cut(log, 10_000) if one.path == log.segments[0].path]
    cutter = SegmentCutter(log.context.disk, log.segments[0], log.log_id)
    cutter.skip_to(pieces[3].first, 7_000)
    again = cutter.next(ends_of(log)[0], 10_000)
    assert again == pieces[3]
    assert again.content(log.context.disk, 5) == pieces[3].content(log.context.disk, 5)


def test_an_object_says_up_to_where_rows_were_stored_when_it_was_made(storage: Storage) -> None:
    log = filled(storage, 10)
    (piece,) = cut(log, LARGE)
    for stored in (0, 700):
        assert stored_before(as_file(piece, log, stored)[2]) == stored


def test_an_offset_inside_a_frame_is_refused(storage: Storage) -> None:
    log = filled(storage, 10)
    cutter = SegmentCutter(log.context.disk, log.segments[0], log.log_id)
    with pytest.raises(CorruptLog, match="offset 350 is inside a frame"):
        cutter.skip_to(350, LARGE)


def test_a_changed_byte_is_found_before_it_is_uploaded(storage: Storage) -> None:
    log = filled(storage, 60)
    pieces = cut(log, 10_000)
    segment = log.segments[0]
    file = log.context.disk.open(segment.path, "write")
    position = pieces[2].runs[0][0] + 40
    file.write([bytes([file.read(1, position)[0] ^ 1])], position)
    with pytest.raises(CorruptLog, match="have changed"):
        pieces[2].content(log.context.disk, 0)
    cutter = SegmentCutter(log.context.disk, segment, log.log_id)
    cutter.skip_to(pieces[2].first, 10_000)
    with pytest.raises(CorruptLog, match="checksum"):
        cutter.next(log.durable_end, 10_000)


def test_missing_rows_are_found(storage: Storage) -> None:
    log = filled(storage, 10)
    cutter = SegmentCutter(log.context.disk, log.segments[0], log.log_id)
    cutter.skip_to(1_000, LARGE)
    with pytest.raises(CorruptLog, match="is missing"):
        cutter.next(1_001, LARGE)

"""`frazil.log.repair.check`: everything is read, nothing is changed, and the first wrong byte is named."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import frazil
from frazil.core.disk import LocalDisk
from frazil.core.errors import CorruptLog, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import Settings, WalSettings
from frazil.log.folder.catalog import TopicCatalog
from frazil.log.repair.check import CheckReport, State, check

TOPIC = "/default/orders"
NAME = TopicName("default", "orders")


def write_log(data: Path, batches: int = 6, *, rows: int = 3, payload_bytes: int = 100, **wal: object) -> Path:
    """A topic with `batches` frames of `rows` rows; returns its folder."""
    settings = Settings(data=data, wal=WalSettings.model_validate({"max_file_size": 64 * 1024, **wal}))
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        for number in range(batches):
            topic.publish_many([b"%d-%d" % (number, row) + bytes(payload_bytes) for row in range(rows)])
    return data / "log" / "default" / "orders"


def write_segments(data: Path) -> list[Path]:
    """Several sealed segments and an open one."""
    folder = write_log(data, batches=10, payload_bytes=6_000)
    segments = sorted(folder.glob("*.wal"))
    assert len(segments) >= 3
    return segments


def check_one(data: Path, *, owned: bool = False) -> CheckReport:
    (report,) = check(LocalDisk(), data / "log", [NAME], owned=owned)
    return report


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def frame_positions(path: Path) -> list[int]:
    from frazil.log.repair.survey import SegmentFrames

    frames = SegmentFrames(LocalDisk(), path)
    try:
        return [frame.position for frame in frames]
    finally:
        frames.close()


def test_a_whole_log_is_ok_and_counted(tmp_path: Path) -> None:
    segments = write_segments(tmp_path)
    report = check_one(tmp_path)
    assert (report.state, report.frames, report.rows, report.end) == (State.OK, 10, 30, 30)
    assert report.segments == len(segments)
    assert report.bytes == sum(path.stat().st_size for path in segments)


def test_a_check_changes_no_byte(tmp_path: Path) -> None:
    segments = write_segments(tmp_path)
    flip(segments[1], 2_000)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    check_one(tmp_path)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


def test_a_flipped_bit_in_a_middle_segment_is_found_though_opening_does_not_see_it(tmp_path: Path) -> None:
    segments = write_segments(tmp_path)
    position = frame_positions(segments[1])[2]
    flip(segments[1], position + 500)
    frazil.open(tmp_path).close()
    report = check_one(tmp_path)
    assert report.state is State.CORRUPT
    assert report.flaw is not None
    assert (report.flaw.path, report.flaw.position) == (str(segments[1]), position)
    assert "checksum" in report.flaw.reason


def opened(data: Path) -> object:
    """What opening the topic makes of it, in the words of a check."""
    try:
        with frazil.open(data) as storage:
            return State.TORN if storage.topic(TOPIC).stats().torn_tail else State.OK
    except CorruptLog as error:
        return State.CORRUPT, error.position, error.reason


def test_check_and_opening_agree_on_every_byte_of_a_segment(tmp_path: Path) -> None:
    folder = write_log(tmp_path, batches=4, rows=1, payload_bytes=8)
    (segment,) = folder.glob("*.wal")
    (tmp_path / "log" / "~ends").unlink()
    good = segment.read_bytes()
    used = len(good.rstrip(b"\0")) + 8
    for position in range(0, used, 7):
        segment.write_bytes(good)
        flip(segment, position)
        report = check_one(tmp_path)
        found = (
            (report.state, report.flaw.position, report.flaw.reason) if report.flaws and report.flaw else report.state
        )
        assert found == opened(tmp_path), f"byte {position}"
        for kept in folder.glob("*.torn"):
            kept.unlink()
        (tmp_path / "log" / "~ends").unlink(missing_ok=True)


def test_a_half_written_frame_is_a_torn_tail_or_in_flight_while_an_owner_writes(tmp_path: Path) -> None:
    (segment,) = write_log(tmp_path).glob("*.wal")
    (tmp_path / "log" / "~ends").unlink()
    last = frame_positions(segment)[-1]
    data = segment.read_bytes()
    segment.write_bytes(data[: last + 200] + bytes(len(data) - last - 200))
    alone = check_one(tmp_path)
    assert (alone.state, alone.rows) == (State.TORN, 15)
    assert alone.torn is not None
    assert alone.torn.position == last
    beside = check_one(tmp_path, owned=True)
    assert (beside.state, beside.in_flight, beside.rows) == (State.OK, True, 15)


def test_a_bad_frame_with_good_ones_behind_is_corrupt_even_while_an_owner_writes(tmp_path: Path) -> None:
    (segment,) = write_log(tmp_path).glob("*.wal")
    (tmp_path / "log" / "~ends").unlink()
    position = frame_positions(segment)[3]
    flip(segment, position + 100)
    report = check_one(tmp_path, owned=True)
    assert report.state is State.CORRUPT
    assert report.flaw is not None
    assert report.flaw.position == position


def test_a_check_beside_a_busy_owner_finds_nothing_wrong(tmp_path: Path) -> None:
    settings = Settings(data=tmp_path, wal=WalSettings(max_file_size=64 * 1024))
    with frazil.open(settings) as storage:
        topic = storage.topic(TOPIC)
        for number in range(60):
            topic.publish_many([bytes(2_000)] * (1 + number % 3))
            report = check_one(tmp_path, owned=True)
            assert (report.state, report.rows) == (State.OK, topic.stats().end)


def test_a_missing_segment_is_a_gap_at_the_end_of_the_one_before(tmp_path: Path) -> None:
    segments = write_segments(tmp_path)
    segments[1].unlink()
    report = check_one(tmp_path)
    assert report.flaw is not None
    assert report.flaw.path == str(segments[0])
    assert "the next segment begins at offset" in report.flaw.reason


def test_a_missing_closing_mark_is_reported(tmp_path: Path) -> None:
    segments = write_segments(tmp_path)
    segments[0].write_bytes(segments[0].read_bytes()[:-24])
    report = check_one(tmp_path)
    assert report.flaw is not None
    assert report.flaw.path == str(segments[0])


def test_a_segment_of_another_topic_is_reported_at_its_first_byte(tmp_path: Path) -> None:
    folder = write_log(tmp_path)
    with frazil.open(tmp_path) as storage:
        storage.topic("/default/other").publish("x")
    (foreign,) = (tmp_path / "log" / "default" / "other").glob("*.wal")
    (own,) = folder.glob("*.wal")
    own.write_bytes(foreign.read_bytes())
    report = check_one(tmp_path)
    assert report.flaw is not None
    assert (report.flaw.path, report.flaw.position) == (str(own), 0)
    assert "/default/other" in report.flaw.reason


def test_a_segment_that_names_another_topic_is_reported_though_its_log_id_is_right(tmp_path: Path) -> None:
    from frazil.log.format.frames import pack_head
    from frazil.log.repair.survey import SegmentFrames

    (segment,) = write_log(tmp_path).glob("*.wal")
    frames = SegmentFrames(LocalDisk(), segment)
    frames.close()
    other = pack_head(0, frames.head._replace(topic="/default/others"))
    segment.write_bytes(other + segment.read_bytes()[frames.position :])
    report = check_one(tmp_path)
    assert report.flaw is not None
    assert (report.flaw.position, report.flaw.reason) == (0, "this segment belongs to /default/others")


def test_a_segment_removed_by_retention_meanwhile_is_no_flaw(tmp_path: Path) -> None:
    segments = write_segments(tmp_path)
    gone: list[Path] = []

    def remove_the_first(_: object) -> None:
        if not gone:
            first_kept = int(segments[2].stem)
            TopicCatalog(LocalDisk(), tmp_path / "log").update(NAME, lambda old: old.with_first_offset(first_kept))
            gone.append(segments[0].rename(tmp_path / "gone"))
            gone.append(segments[1].rename(tmp_path / "gone too"))

    (report,) = check(LocalDisk(), tmp_path / "log", [NAME], owned=True, on_segment=remove_the_first)
    assert (report.state, report.first_offset) == (State.OK, int(segments[2].stem))


def test_append_times_that_step_back_between_segments_are_reported(tmp_path: Path) -> None:
    from frazil.log.storage import open_storage
    from frazil.testing import FakeClock

    clock = FakeClock()
    settings = Settings(data=tmp_path, wal=WalSettings(max_file_size=64 * 1024))
    with open_storage(settings, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        for _ in range(10):
            topic.publish_many([bytes(6_000)] * 3)
    segments = sorted((tmp_path / "log" / "default" / "orders").glob("*.wal"))
    _age(segments[1], -1_000_000)
    report = check_one(tmp_path)
    assert report.flaw is not None
    assert report.flaw.path == str(segments[1])
    assert "step back" in report.flaw.reason


def _age(path: Path, by_us: int) -> None:
    """Rewrite a segment with earlier append times and right checksums."""
    from frazil.core.rows import constant_times
    from frazil.log.format.frames import pack_header, pack_mark
    from frazil.log.read.segment_reader import FrameStream

    file = LocalDisk().open(path, "read")
    frames = FrameStream(file)
    head = frames.next()
    assert head is not None
    pieces = [path.read_bytes()[: head.end_position]]
    schema = pa.ipc.read_schema(pa.py_buffer(head.payload)).remove_metadata()
    while (frame := frames.next()) is not None:
        if frame.is_mark:
            pieces.append(pack_mark(frame.offset))
            continue
        rows = pa.ipc.read_record_batch(pa.py_buffer(frame.payload), schema)
        time_us = rows.column(0).cast(pa.int64())[0].as_py() + by_us
        older = rows.set_column(0, schema.field(0), constant_times(rows.num_rows, time_us)).serialize()
        pieces += [pack_header(frame.offset, older), bytes(older)]
    file.close()
    path.write_bytes(b"".join(pieces))


def test_a_log_that_ends_before_what_was_recorded_is_corrupt(tmp_path: Path) -> None:
    (segment,) = write_log(tmp_path).glob("*.wal")
    last = frame_positions(segment)[-1]
    data = segment.read_bytes()
    segment.write_bytes(data[:last] + bytes(len(data) - last))
    report = check_one(tmp_path)
    assert report.flaw is not None
    assert (report.flaw.path, report.flaw.position) == (str(segment), last)
    assert "acknowledged" in report.flaw.reason


def test_a_topic_whose_folder_vanished_is_missed(tmp_path: Path) -> None:
    folder = write_log(tmp_path)
    folder.rename(tmp_path / "elsewhere")
    (report,) = check(LocalDisk(), tmp_path / "log")
    assert (report.topic, report.state) == (TOPIC, State.CORRUPT)
    assert "files are gone" in report.flaws[0].reason


def test_a_deleted_topic_is_not_missed(tmp_path: Path) -> None:
    write_log(tmp_path)
    with frazil.open(tmp_path) as storage:
        storage.delete_topic(TOPIC)
    assert list(check(LocalDisk(), tmp_path / "log")) == []
    with pytest.raises(TopicNotFound):
        check_one(tmp_path)


@pytest.mark.parametrize("content", [None, b"{}", b"\xff\x00"])
def test_a_missing_or_broken_topic_record_is_reported_and_the_rows_still_counted(
    tmp_path: Path, content: bytes | None
) -> None:
    record = write_log(tmp_path) / "topic.json"
    record.unlink() if content is None else record.write_bytes(content)
    report = check_one(tmp_path)
    assert (report.state, report.rows) == (State.CORRUPT, 18)
    assert report.flaws[0].path == str(record)


def test_a_broken_record_of_ends_is_reported_beside_the_topics(tmp_path: Path) -> None:
    write_log(tmp_path)
    flip(tmp_path / "log" / "~ends", 20)
    first, second = check(LocalDisk(), tmp_path / "log")
    assert (first.topic, first.state) == ("~ends", State.CORRUPT)
    assert (second.topic, second.state) == (TOPIC, State.OK)


def test_progress_is_told_for_each_segment(tmp_path: Path) -> None:
    segments = write_segments(tmp_path)
    seen: list[Path] = []
    list(check(LocalDisk(), tmp_path / "log", on_segment=lambda segment: seen.append(segment.path)))
    assert seen == segments


def test_typed_topics_are_checked_against_their_columns(tmp_path: Path) -> None:
    schema = pa.schema([pa.field("a", pa.int32())])
    with frazil.open(tmp_path) as storage:
        storage.create_topic(TOPIC, schema=schema).publish_many(pa.record_batch([pa.array([1], pa.int32())], ["a"]))
        wider = pa.schema([pa.field("a", pa.int64()), pa.field("b", pa.string())])
        topic = storage.change_schema(TOPIC, wider)
        topic.publish_many(pa.record_batch([pa.array([1], pa.int64()), pa.array(["x"])], ["a", "b"]))
    report = check_one(tmp_path)
    assert (report.state, report.rows, report.segments) == (State.OK, 2, 2)

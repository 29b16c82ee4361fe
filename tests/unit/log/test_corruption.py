"""Bytes that are not what was written: refused with file and position, or a torn tail that is kept and reported.

Never a wrong row, never a good row dropped without a word. Every single bit of a segment is tried, none is sampled.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from isal.isal_zlib import crc32
from segment_files import (
    FOLDER,
    LOG,
    SCHEMA,
    SETTINGS,
    TOPIC,
    SmallLog,
    check_refusal,
    frames_of,
    get,
    make_log,
    numbers,
    put,
)

from frazil import CorruptLog, SyncMode
from frazil.core.rows import with_append_time
from frazil.log.format.frames import HEADER_BYTES, pack_header, pack_mark
from frazil.log.storage import open_storage
from frazil.testing import FakeClock

FRAMES = 13

# --- every bit, every byte


def damaged(log: SmallLog, path: Path, data: bytes, end_min: int) -> int | None:
    """Recover with these bytes in place of the segment: the end that was found, None for a refusal."""
    put(log.disk, path, data)
    try:
        recovered, _ = log.recover(end_min)
    except CorruptLog as error:
        check_refusal(error, path)
        return None
    if recovered.end < log.end or recovered.torn is not None:
        torn = recovered.torn
        assert torn is not None, f"rows from {recovered.end} on were dropped without a word"
        kept = get(log.disk, torn.kept_as)
        assert data[torn.position :].rstrip(b"\0") == kept, "what was cut was not kept"
        log.disk.remove(torn.kept_as)
    return recovered.end


def written_bytes(log: SmallLog) -> int:
    return frames_of(log.disk, log.last)[-1].end_position


EACH_BIT = pytest.mark.parametrize("every", [7, pytest.param(1, marks=pytest.mark.long)])
"""Every seventh bit: each byte is damaged, at all of its places in turn. The long tests damage every bit."""


@EACH_BIT
@pytest.mark.parametrize("closed_cleanly", [True, False])
def test_any_flipped_bit_in_the_last_segment_is_refused_or_only_cuts_the_last_frame(
    closed_cleanly: bool, every: int
) -> None:
    log = make_log(FRAMES)
    last = frames_of(log.disk, log.last)[-1]
    original = bytearray(log.segments[log.last])
    refused = 0
    for bit in range(0, last.end_position * 8, every):
        data = bytearray(original)
        data[bit // 8] ^= 1 << bit % 8
        end = damaged(log, log.last, bytes(data), log.end if closed_cleanly else 0)
        if end is None:
            refused += 1
            assert closed_cleanly or bit // 8 < last.position, "a mere torn tail was refused"
        else:
            assert not closed_cleanly, "a damaged row was not noticed"
            assert bit // 8 >= last.position, "more than the last frame was cut"
            assert end == last.offset
    assert refused >= last.position * 8 // every


@pytest.mark.parametrize("closed_cleanly", [True, False])
def test_a_segment_cut_at_any_byte_keeps_all_frames_before_the_cut(closed_cleanly: bool) -> None:
    log = make_log(FRAMES)
    frames = frames_of(log.disk, log.last)
    original = log.segments[log.last]
    for size in range(frames[-1].end_position + 64):
        whole = [frame for frame in frames if frame.end_position <= size]
        following = [frame.offset for frame in frames[len(whole) :]]
        rest = original[whole[-1].end_position : size] if whole else b""
        expected = following[0] if following else log.end
        if not rest.strip(b"\0"):  # cut exactly between two frames, which without a record of the end looks whole
            put(log.disk, log.last, original[:size])
            try:
                end: int | None = log.recover(log.end if closed_cleanly else 0)[0].end
            except CorruptLog as error:
                check_refusal(error, log.last)
                end = None
        else:
            end = damaged(log, log.last, original[:size], log.end if closed_cleanly else 0)
        if not whole or (closed_cleanly and expected < log.end):
            assert end is None, f"cut at {size}"
        else:
            assert end == expected, f"cut at {size}"


@EACH_BIT
@pytest.mark.parametrize("mode", [SyncMode.PERIODIC, SyncMode.NONE])
def test_any_flipped_bit_in_a_segment_of_another_mode_gives_no_wrong_row(mode: SyncMode, every: int) -> None:
    log = make_log(4, mode=mode)
    frames = frames_of(log.disk, log.last)
    original = log.segments[log.last]
    for bit in range(frames[0].end_position * 8, frames[-1].end_position * 8, every):
        data = bytearray(original)
        data[bit // 8] ^= 1 << bit % 8
        (hit,) = (frame for frame in frames if frame.position <= bit // 8 < frame.end_position)
        assert damaged(log, log.last, bytes(data), 0) == hit.offset


@pytest.mark.parametrize("mode", [SyncMode.PERIODIC, SyncMode.NONE])
def test_what_was_synced_before_a_mark_is_never_cut_for_a_torn_tail(mode: SyncMode) -> None:
    log = make_log(8, mode=mode, sync_after=4)
    frames = frames_of(log.disk, log.last)
    (mark,) = (found for found in frames if found.is_mark)
    original = log.segments[log.last]
    for position in range(frames[0].end_position, frames[-1].end_position, 3):
        data = bytearray(original)
        data[position] ^= 0x10
        end = damaged(log, log.last, bytes(data), 0)
        if position < mark.position:
            assert end is None, f"byte {position}: synced rows were cut"
        else:
            assert end is not None, f"byte {position}: rows that were never synced were refused"
            assert end >= mark.offset


@EACH_BIT
def test_any_flipped_bit_in_a_sealed_segment_is_found_by_whoever_reads_it(every: int) -> None:
    log = make_log(3 * FRAMES, rotate_every=FRAMES)
    _, middle, last = sorted(log.segments)
    start, end = int(middle.name[:20]), int(last.name[:20])
    storage = open_storage(SETTINGS, disk=log.disk, clock=FakeClock())
    topic = storage.topic(TOPIC)
    (segment,) = (segment for segment in topic.log.segments if segment.path == middle)
    original = log.segments[middle]
    mark = frames_of(log.disk, middle)[-1]
    assert mark.is_mark
    file = log.disk.open(middle, "write")
    for bit in range(0, len(original) * 8, every):
        segment.index = []
        file.write([bytes([original[bit // 8] ^ 1 << bit % 8])], bit // 8)
        rows: list[int] = []
        try:
            for batch in topic.read_batches(start, end=end):
                assert batch.column("_offset").to_pylist() == batch.column("value").to_pylist()
                rows += batch.column("value").to_pylist()
        except CorruptLog as error:
            check_refusal(error, middle)
        else:
            assert bit // 8 >= mark.position, f"bit {bit} was not noticed"
        assert rows == list(range(start, start + len(rows)))
        if bit // 8 >= mark.position:
            assert rows == list(range(start, end))
            with pytest.raises(CorruptLog) as refused:
                log.recover(0)
            check_refusal(refused.value, middle)
        file.write([original[bit // 8 : bit // 8 + 1]], bit // 8)
    storage.close()


# --- pages and tails


@pytest.mark.parametrize("page_bytes", [512, 4096])
@pytest.mark.parametrize("closed_cleanly", [True, False])
def test_a_page_of_zeros_is_refused_or_cuts_a_tail_of_nothing_but_zeros_and_rubble(
    page_bytes: int, closed_cleanly: bool
) -> None:
    log = make_log(60)
    frames = frames_of(log.disk, log.last)
    original = log.segments[log.last]
    for start in range(0, frames[-1].end_position, page_bytes):
        log.restore()
        data = original[:start] + bytes(len(original[start : start + page_bytes])) + original[start + page_bytes :]
        put(log.disk, log.last, data)
        hit = next(frame for frame in frames if frame.end_position > start)
        try:
            recovered, _ = log.recover(log.end if closed_cleanly else 0)
        except CorruptLog as error:
            check_refusal(error, log.last)
            continue
        assert not closed_cleanly
        assert recovered.end == hit.offset
        assert not any(frame.position >= start + page_bytes for frame in frames), "a good frame was cut off"
        assert recovered.torn is not None or not data[recovered.segments[-1].used_bytes :].strip(b"\0")


@pytest.mark.parametrize("seed", range(20))
def test_a_garbage_tail_is_cut_and_kept_and_no_row_is_lost(seed: int) -> None:
    log = make_log(FRAMES)
    rng = random.Random(seed)
    garbage = rng.randbytes(rng.randrange(1, 9_000))
    data = log.segments[log.last][: written_bytes(log)] + garbage
    assert damaged(log, log.last, data, log.end) == log.end


def test_appending_goes_on_after_a_cut_tail() -> None:
    log = make_log(FRAMES)
    put(log.disk, log.last, log.segments[log.last][: written_bytes(log)] + b"garbage of a torn write")
    with open_storage(SETTINGS, disk=log.disk, clock=FakeClock()) as storage:
        topic = storage.topic(TOPIC)
        assert topic.stats().torn_tail is not None
        assert topic.publish_many(numbers(log.end, 2)).start == log.end
    assert log.recover(log.end + 2)[0].end == log.end + 2


def test_a_torn_frame_whose_payload_holds_frames_is_refused_rather_than_guessed() -> None:
    """Someone publishes a copy of a segment, and the power goes: nothing tells its frames from acknowledged ones."""
    log = make_log(FRAMES)
    rows = b"".join(frame(offset, stored(numbers(offset, 1))) for offset in range(log.end, log.end + 5))
    torn = bytearray(frame(log.end, rows))
    torn[:HEADER_BYTES] = bytes(HEADER_BYTES)  # the first sector did not make it
    with_tail(log, bytes(torn))
    with pytest.raises(CorruptLog, match="a valid frame") as refused:
        log.recover(log.end)
    check_refusal(refused.value)


# --- whole files


def opened_and_read(log: SmallLog) -> list[int]:
    with open_storage(SETTINGS, disk=log.disk, clock=FakeClock()) as storage:
        rows: list[int] = []
        for batch in storage.topic(TOPIC).read_batches("earliest"):
            assert batch.column("_offset").to_pylist() == batch.column("value").to_pylist(), "a wrong row"
            rows += batch.column("value").to_pylist()
        return rows


@pytest.fixture
def log() -> SmallLog:
    return make_log(20, rotate_every=5)


def test_the_untouched_log_is_read_whole(log: SmallLog) -> None:
    assert len(log.segments) == 4
    assert opened_and_read(log) == list(range(log.end))


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_missing_segment_is_refused(log: SmallLog, which: int) -> None:
    log.disk.remove(sorted(log.segments)[which])
    with pytest.raises(CorruptLog) as refused:
        opened_and_read(log)
    check_refusal(refused.value)


def test_a_log_without_any_segment_is_refused(log: SmallLog) -> None:
    for path in log.segments:
        log.disk.remove(path)
    with pytest.raises(CorruptLog) as refused:
        opened_and_read(log)
    check_refusal(refused.value, FOLDER)


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (2, 3), (0, 3)])
def test_swapped_segments_are_refused(log: SmallLog, one: int, other: int) -> None:
    paths = sorted(log.segments)
    put(log.disk, paths[one], log.segments[paths[other]])
    put(log.disk, paths[other], log.segments[paths[one]])
    with pytest.raises(CorruptLog) as refused:
        opened_and_read(log)
    check_refusal(refused.value)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
@pytest.mark.parametrize("base", [1, 12, 10_000])
def test_a_segment_duplicated_under_another_name_is_refused(log: SmallLog, which: int, base: int) -> None:
    assert FOLDER / f"{base:020d}.wal" not in log.segments
    put(log.disk, FOLDER / f"{base:020d}.wal", log.segments[sorted(log.segments)[which]])
    with pytest.raises(CorruptLog) as refused:
        opened_and_read(log)
    check_refusal(refused.value)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_renamed_segment_is_refused(log: SmallLog, which: int) -> None:
    path = sorted(log.segments)[which]
    log.disk.rename(path, FOLDER / f"{int(path.name[:20]) + 1:020d}.wal")
    with pytest.raises(CorruptLog) as refused:
        opened_and_read(log)
    check_refusal(refused.value)


@pytest.mark.parametrize("which", [0, 1, 2, 3])
def test_a_segment_of_another_topic_in_the_same_place_is_refused(log: SmallLog, which: int) -> None:
    """Its offsets fit and its checksums match: only the log's identity tells."""
    foreign = make_log(20, rotate_every=5)
    path = sorted(log.segments)[which]
    put(log.disk, path, foreign.segments[path])
    with pytest.raises(CorruptLog, match="belongs to log") as refused:
        opened_and_read(log)
    check_refusal(refused.value, path)


@EACH_BIT
@pytest.mark.parametrize("path", [FOLDER / "topic.json", LOG / "~ends"])
def test_any_flipped_bit_in_a_record_is_refused(path: Path, every: int) -> None:
    log = make_log(3)
    original = get(log.disk, path)
    for bit in range(0, len(original) * 8, every):
        data = bytearray(original)
        data[bit // 8] ^= 1 << bit % 8
        put(log.disk, path, bytes(data))
        try:
            assert opened_and_read(log) == list(range(log.end))
        except CorruptLog as error:
            check_refusal(error, path)
        else:
            raise AssertionError(f"bit {bit} was not noticed")
        finally:
            put(log.disk, path, original)


def test_a_missing_topic_record_is_refused(log: SmallLog) -> None:
    log.disk.remove(FOLDER / "topic.json")
    with pytest.raises(CorruptLog) as refused:
        opened_and_read(log)
    check_refusal(refused.value, FOLDER / "topic.json")


# --- frames whose checksum is right


def with_tail(log: SmallLog, *frames: bytes) -> None:
    """Further frames behind the last good one, as if the log had been killed after writing them."""
    data = log.segments[log.last][: written_bytes(log)] + b"".join(frames)
    put(log.disk, log.last, data + bytes(4096))


def frame(offset: int, payload: bytes) -> bytes:
    return pack_header(offset, payload) + payload


def stored(rows: pa.RecordBatch) -> bytes:
    schema = pa.schema([pa.field("_append_time", pa.timestamp("us", tz="UTC"), nullable=False), *SCHEMA])
    return bytes(with_append_time(rows, schema, 2_000_000_000_000_000).serialize())


def lying_header(offset: int, length: int) -> bytes:
    """A header whose checksum is right for the length it claims and the zeros behind it, as far as that can be."""
    covered = struct.pack("<QI", offset, length)
    return covered + struct.pack("<I", crc32(bytes(min(length, 4096)), crc32(covered)))


@pytest.mark.parametrize("length", [0, 1, 7, 9, 4_097, 65_536, 2**31, 2**32 - 8, 2**32 - 1])
def test_a_frame_with_a_hostile_length_is_a_torn_tail(length: int) -> None:
    log = make_log(FRAMES)
    with_tail(log, lying_header(log.end, length))
    recovered, rows = log.recover(log.end)
    assert recovered.torn is not None
    assert rows == list(range(log.end))


def schema_payload(log: SmallLog) -> bytes:
    return bytes(frames_of(log.disk, log.last)[0].payload)


def dictionary_payload() -> bytes:
    """The dictionary message of a stream with a dictionary column."""
    sink = pa.BufferOutputStream()
    batch = pa.record_batch({"value": pa.array(["a", "b"]).dictionary_encode()})
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    message = reader.read_next_message()
    assert message.type == "dictionary"
    return bytes(message.serialize())


HOSTILE: dict[str, Callable[[SmallLog], bytes]] = {
    "a schema in the middle": lambda log: frame(log.end, schema_payload(log)),
    "a dictionary": lambda log: frame(log.end, dictionary_payload()),
    "no rows": lambda log: frame(log.end, stored(numbers(log.end, 0))),
    "an offset too low": lambda log: frame(log.end - 1, stored(numbers(log.end, 1))),
    "an offset too high": lambda log: frame(log.end + 1, stored(numbers(log.end, 1))),
    "an offset of another world": lambda log: frame(2**64 - 1, stored(numbers(log.end, 1))),
    "a mark at a wrong offset": lambda log: pack_mark(log.end + 1),
    "zeros": lambda log: frame(log.end, bytes(64)),
    "text": lambda log: frame(log.end, b"not Arrow at all".ljust(64)),
    "half a batch": lambda log: frame(log.end, stored(numbers(log.end, 1))[:64]),
    "another schema": lambda log: frame(log.end, bytes(pa.record_batch({"x": pa.array(["y"])}).serialize())),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_frame_with_a_right_checksum_and_wrong_content_is_refused(kind: str) -> None:
    log = make_log(FRAMES)
    end_position = written_bytes(log)
    with_tail(log, HOSTILE[kind](log))
    with pytest.raises(CorruptLog) as refused:
        log.recover(0)
    check_refusal(refused.value, log.last)
    assert refused.value.position == end_position


def test_append_times_that_step_back_are_refused() -> None:
    log = make_log(FRAMES)
    schema = pa.schema([pa.field("_append_time", pa.timestamp("us", tz="UTC"), nullable=False), *SCHEMA])
    with_tail(log, frame(log.end, bytes(with_append_time(numbers(log.end, 1), schema, 1_000).serialize())))
    with pytest.raises(CorruptLog, match="append times"):
        log.recover(0)

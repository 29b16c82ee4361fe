"""What is left after a crash: cut a torn tail, refuse everything else.

In sync mode `always` every frame is synced before the next is written, so at most one frame is unacknowledged
when the power goes: a bad frame with a valid one behind it was acknowledged, and is corruption. In the other
modes several frames may be in flight; there a mark tells which rows were synced before it was written. What
is cut goes into a `.torn` file beside the segment. Any segment but the last was sealed: nothing in it is cut.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from frazil.core.disk import Disk, File
from frazil.core.errors import CorruptLog
from frazil.core.settings import SyncMode
from frazil.log.format import (
    MARK_BYTES,
    BadFrame,
    Frame,
    SegmentHead,
    find_frames,
    unpack_batch,
    unpack_frame,
    unpack_head,
)
from frazil.log.segment import SUFFIX, Segment
from frazil.log.segment_reader import FrameStream, append_times_us

TORN_SUFFIX = ".torn"


@dataclass(frozen=True, slots=True)
class Torn:
    """A tail that was never acknowledged, and where its bytes were kept."""

    path: Path
    position: int
    kept_as: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Recovered:
    segments: list[Segment]
    head: SegmentHead | None
    end: int
    last_time_us: int
    torn: Torn | None


@dataclass(frozen=True, slots=True)
class Scan:
    """How far the frames of a file are good, and what stopped the reading."""

    head: SegmentHead
    end: int
    end_position: int
    last_time_us: int
    bad: str | None
    sealed: bool


def recover(disk: Disk, folder: Path, log_id: str, end_min: int) -> Recovered:
    """Bring a topic's folder to a state from which appending can go on.

    `end_min` is an offset below which rows are known to have been durable: a log that ends before it is refused.
    """
    segments = list_segments(disk, folder)
    if not segments:
        if end_min > 0:
            raise CorruptLog(str(folder), 0, f"no segment is left, but rows up to offset {end_min} were acknowledged")
        return Recovered([], None, 0, 0, None)
    for segment, following in itertools.pairwise(segments):
        check_seal(disk, segment, following.base)
    last = segments[-1]
    scan, torn = _recover_last(disk, last, log_id, end_min)
    last.used_bytes = scan.end_position
    last.allocated_bytes = scan.end_position if torn else last.allocated_bytes
    last.sealed = scan.sealed
    last.last_time_us = scan.last_time_us
    if scan.last_time_us == 0 and len(segments) > 1:  # a fresh segment has no row yet: the one before it tells
        last.last_time_us = _last_time_us(disk, segments[-2], log_id)
    return Recovered(segments, scan.head, scan.end, last.last_time_us, torn)


def list_segments(disk: Disk, folder: Path) -> list[Segment]:
    """The segment files of a topic by their names alone, lowest offset first."""
    segments = []
    for entry in disk.list(folder):
        stem = entry.name.removesuffix(SUFFIX)
        if stem != entry.name and len(stem) == 20 and stem.isascii() and stem.isdigit():
            segments.append(Segment(int(stem), folder / entry.name, entry.size_bytes, entry.size_bytes, sealed=True))
    return sorted(segments, key=lambda segment: segment.base)


def check_seal(disk: Disk, segment: Segment, end: int) -> None:
    """A segment that is not the last ends with a mark at the offset where the next begins."""
    position = segment.used_bytes - MARK_BYTES
    file = disk.open(segment.path, "read")
    try:
        tail = memoryview(file.read(MARK_BYTES, max(0, position)))
    finally:
        file.close()
    try:
        mark = unpack_frame(tail, 0, position)
    except BadFrame as error:
        raise CorruptLog(str(segment.path), max(0, position), f"the closing mark is missing ({error})") from None
    if not mark.is_mark or mark.offset != end:
        found = f"this segment ends at offset {mark.offset}" if mark.is_mark else "this segment has no closing mark"
        raise CorruptLog(str(segment.path), position, f"the next segment begins at offset {end}, but {found}")


def _recover_last(disk: Disk, segment: Segment, log_id: str, end_min: int) -> tuple[Scan, Torn | None]:
    file = disk.open(segment.path, "write")
    try:
        scan, rest = scan_segment(file, segment, log_id)
        if scan.bad is not None:
            _refuse_if_acknowledged(segment, scan, rest)
        if scan.end < end_min:
            raise CorruptLog(
                str(segment.path),
                scan.end_position,
                f"{scan.bad or 'the log ends'} at offset {scan.end}, but offsets up to {end_min} were acknowledged",
            )
        return scan, _cut(disk, file, segment, scan, rest) if scan.bad is not None else None
    finally:
        file.close()


def scan_segment(file: File, segment: Segment, log_id: str) -> tuple[Scan, memoryview]:
    """Read a segment from its beginning as far as it is good; also gives the bytes from there on."""
    path = str(segment.path)
    frames = FrameStream(file)
    head = _scan_head(path, frames, segment.base, log_id)
    end, last_time_us, sealed = segment.base, 0, False
    bad: str | None = None
    while True:
        position = frames.position
        try:
            frame = frames.next()
        except BadFrame as error:
            bad = str(error)
            break
        if frame is None:
            break
        if frame.offset != end:
            raise CorruptLog(path, position, f"offset {frame.offset} stands where {end} belongs")
        sealed = frame.is_mark and frame.end_position == segment.allocated_bytes
        if not frame.is_mark:
            rows = unpack_batch(path, frame, head.schema)
            last_time_us = _times_in_order(path, frame, rows, last_time_us)
            segment.first_time_us = segment.first_time_us or int(append_times_us(rows)[0])
            segment.note(frame.offset, position)
            end = frame.offset + rows.num_rows
    frames.position = position
    rest = frames.rest()
    if bad is None and any_bytes(rest):
        bad = "bytes follow that are no frame"
    return Scan(head, end, position, last_time_us, bad, sealed), rest


def _scan_head(path: str, frames: FrameStream, base: int, log_id: str) -> SegmentHead:
    """The schema frame was durable before the file had its name, so a bad one is never a torn tail."""
    try:
        frame = frames.next()
    except BadFrame as error:
        raise CorruptLog(path, 0, f"the schema frame is bad: {error}") from None
    if frame is None:
        raise CorruptLog(path, 0, "the schema frame is missing")
    if frame.offset != base:
        raise CorruptLog(path, 0, f"the file begins at offset {frame.offset}, not where its name says")
    head = unpack_head(path, frame)
    if head.log_id != log_id:
        raise CorruptLog(path, 0, f"this segment belongs to log {head.log_id} of {head.topic}, not to {log_id}")
    return head


def any_bytes(data: memoryview) -> bool:
    return bytes(data).count(0) != len(data)


def _times_in_order(path: str, frame: Frame, rows: pa.RecordBatch, before_us: int) -> int:
    times = append_times_us(rows)
    if int(times[0]) < before_us or (times[1:] < times[:-1]).any():
        raise CorruptLog(path, frame.position, "the append times step back")
    return int(times[-1])


def _refuse_if_acknowledged(segment: Segment, scan: Scan, rest: memoryview) -> None:
    """A bad frame is corruption, not a torn tail, if something behind it proves that it was once synced."""
    for frame in find_frames(rest, 0, scan.end_position, scan.end):
        if scan.head.sync_mode is SyncMode.ALWAYS or (frame.is_mark and frame.offset > scan.end):
            raise CorruptLog(
                str(segment.path),
                scan.end_position,
                f"{scan.bad}, yet a valid frame with offset {frame.offset} follows at byte {frame.position}",
            )


def _cut(disk: Disk, file: File, segment: Segment, scan: Scan, rest: memoryview) -> Torn:
    """Keep the torn bytes aside, durably, before they are cut off."""
    folder = segment.path.parent
    kept_as = unused_name(disk, segment.path, scan.end_position, TORN_SUFFIX)
    keep_bytes(disk, kept_as, bytes(rest).rstrip(b"\0"))
    disk.sync_folder(folder)
    file.truncate(scan.end_position)
    file.sync()
    assert scan.bad is not None
    return Torn(segment.path, scan.end_position, kept_as, scan.bad)


def unused_name(disk: Disk, path: Path, position: int, suffix: str) -> Path:
    """A name beside a segment for bytes taken out of it at `position`."""
    taken = {entry.name for entry in disk.list(path.parent)}
    for count in range(len(taken) + 1):
        name = f"{path.stem}.{position}{f'.{count}' if count else ''}{suffix}"
        if name not in taken:
            return path.parent / name
    raise AssertionError("more names than files are taken")


def keep_bytes(disk: Disk, path: Path, data: bytes) -> None:
    file = disk.open(path, "create")
    try:
        file.write([data], 0)
        file.sync()
    finally:
        file.close()


def _last_time_us(disk: Disk, segment: Segment, log_id: str) -> int:
    file = disk.open(segment.path, "read")
    try:
        scan, _ = scan_segment(file, segment, log_id)
    finally:
        file.close()
    return scan.last_time_us

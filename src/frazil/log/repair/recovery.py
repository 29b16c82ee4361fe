"""Recovery after a crash: cut a torn tail, refuse everything else.

In sync mode `always` every frame is synced before the next is written, so at most one frame is unacknowledged when the
power fails: a bad frame followed by a valid one was acknowledged, and is corruption. In the other modes several frames
may be in flight; there a mark says which rows were synced before it was written. The removed tail is kept in a `.torn`
file next to the segment. All segments but the last were sealed: nothing in them is cut.

The frames found may be only in the system's cache, left by a process that was killed before its sync, or whose sync
failed. They are written and synced again before any caller sees them.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from frazil.core.disk import Disk, File
from frazil.core.errors import CorruptLog
from frazil.core.settings import SyncMode
from frazil.log.folder.layout import SUFFIX
from frazil.log.format.frames import (
    MARK_BYTES,
    BadFrame,
    Frame,
    SegmentHead,
    check_owner,
    find_frames,
    producers_text,
    sent_text,
    unpack_batch,
    unpack_frame,
    unpack_head,
)
from frazil.log.format.records import open_to_read, temporary_disk_errors, write_new
from frazil.log.read.segment_reader import FrameStream, TimesUs, any_bytes, append_times_us
from frazil.log.write.producers import BadProducers, Producers, sent_from_text
from frazil.log.write.segment import Segment

TORN_SUFFIX = ".torn"


@dataclass(frozen=True, slots=True)
class Torn:
    """A tail that was never acknowledged, and the file that keeps its bytes."""

    path: Path
    position: int
    kept_as: Path
    reason: str

    def __str__(self) -> str:
        where = f"byte {self.position} of {self.path} ({self.reason})"
        return f"cut a torn tail at {where}; its bytes are kept in {self.kept_as}"


@dataclass(frozen=True, slots=True)
class Recovered:
    segments: list[Segment]
    head: SegmentHead | None
    end: int
    last_time_us: int
    torn: Torn | None
    removed_bytes: int
    producers: Producers
    opened: str = field(default_factory=lambda: str(uuid.uuid4()))
    """Unique for each opening of the log; the log never goes back until it is opened again."""


@dataclass(frozen=True, slots=True)
class Scan:
    """How far the frames of a file are good, and what stopped the scan."""

    head: SegmentHead
    end: int
    end_position: int
    last_time_us: int
    bad: str | None
    sealed: bool
    unsure_position: int
    """Everything before it was synced before anything after it was written."""
    producers: Producers


def recover(disk: Disk, folder: Path, log_id: str, first_offset: int, end_min: int) -> Recovered:
    """Recover a topic's folder to a state in which appending can continue.

    `first_offset` is where the log must begin, unless retention was interrupted. `end_min` is an offset below which
    rows were durable: a log that ends before it is refused.
    """
    segments = list_segments(disk, folder)
    check_beginning(folder, segments, first_offset)
    removed_bytes = _finish_removal(disk, folder, segments, first_offset)
    if not segments:
        if end_min > 0:
            raise CorruptLog(str(folder), 0, f"no segment is left, but rows up to offset {end_min} were acknowledged")
        disk.sync_folder(folder)
        return Recovered([], None, 0, 0, None, 0, Producers())
    for segment in segments:
        segment.log_id = log_id
    for segment, following in itertools.pairwise(segments):
        check_seal(disk, segment, following.base)
    last = segments[-1]
    scan, torn = _recover_last(disk, last, log_id, end_min)
    last.used_bytes = scan.end_position
    if torn:
        removed_bytes += last.allocated_bytes - scan.end_position
        last.allocated_bytes = scan.end_position
    last.sealed = scan.sealed
    last.last_time_us = scan.last_time_us
    if scan.last_time_us == 0 and len(segments) > 1:  # a new segment has no row yet: use the one before it
        last.last_time_us = _last_time_us(disk, segments[-2], log_id)
    return Recovered(segments, scan.head, scan.end, last.last_time_us, torn, removed_bytes, scan.producers)


def check_beginning(folder: Path, segments: Sequence[Segment], first_offset: int) -> None:
    if segments and segments[0].base > first_offset:
        base = segments[0].base
        raise CorruptLog(str(segments[0].path), 0, f"no segment holds the offsets from {first_offset} up to {base}")
    if not segments and first_offset > 0:
        raise CorruptLog(str(folder), 0, f"no segment is left, but the log begins at offset {first_offset}")


def _finish_removal(disk: Disk, folder: Path, segments: list[Segment], first_offset: int) -> int:
    """Finish an interrupted removal: retention records the log's beginning before it removes segments."""
    removed_bytes = 0
    while len(segments) > 1 and segments[1].base <= first_offset:
        gone = segments.pop(0)
        disk.remove(gone.path)
        disk.sync_folder(folder)
        removed_bytes += gone.allocated_bytes
    return removed_bytes


def list_segments(disk: Disk, folder: Path) -> list[Segment]:
    """List the segment files of a topic by name, lowest offset first."""
    segments = []
    for entry in disk.list(folder):
        if entry.is_folder:
            continue  # perhaps a manual copy: not ours
        stem = entry.name.removesuffix(SUFFIX)
        if stem != entry.name and len(stem) == 20 and stem.isascii() and stem.isdigit():
            segments.append(Segment(int(stem), folder / entry.name, entry.size_bytes, entry.size_bytes, sealed=True))
    return sorted(segments, key=lambda segment: segment.base)


def check_seal(disk: Disk, segment: Segment, end: int) -> None:
    """Check that a segment that is not the last ends with a mark at the next one's offset."""
    position = segment.used_bytes - MARK_BYTES
    file = open_to_read(disk, segment.path)
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
            refuse_if_acknowledged(segment, scan, rest)
        if scan.end < end_min:
            raise CorruptLog(
                str(segment.path),
                scan.end_position,
                f"{scan.bad or 'the log ends'} at offset {scan.end}, but offsets up to {end_min} were acknowledged",
            )
        if scan.bad is None and scan.end == end_min > segment.base and not scan.sealed:
            return scan, None  # closed cleanly: all of it is durable
        _write_again(file, scan)
        torn = _cut(disk, file, segment, scan, rest) if scan.bad is not None else None
        file.sync()
        disk.sync_folder(segment.path.parent)
        return scan, torn
    finally:
        file.close()


def _write_again(file: File, scan: Scan) -> None:
    """Rewrite the pages: after a failed sync they look clean but are not on the device."""
    rest = file.read(scan.end_position - scan.unsure_position, scan.unsure_position)
    file.write([rest], scan.unsure_position)


def scan_segment(file: File, segment: Segment, log_id: str) -> tuple[Scan, memoryview]:
    """Scan a segment from its beginning as far as it is good; also returns the bytes after that."""
    path = str(segment.path)
    frames = FrameStream(file)
    head, producers = _scan_head(path, frames, segment.base, log_id)
    end, last_time_us, sealed = segment.base, 0, False
    unsure_position = frames.position
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
        if frame.is_mark or head.sync_mode is SyncMode.ALWAYS:
            unsure_position = position
        if not frame.is_mark:
            rows = unpack_batch(path, frame, head.schema)
            times_us = append_times_us(rows)
            last_time_us = _times_in_order(path, frame, times_us, last_time_us)
            segment.first_time_us = segment.first_time_us or int(times_us[0])
            _replay(path, frame, rows, producers)
            segment.note(frame.offset, position)
            end = frame.offset + rows.num_rows
    frames.position = position
    rest = frames.rest()
    if bad is None and any_bytes(rest):
        bad = "bytes follow that are no frame"
    return Scan(head, end, position, last_time_us, bad, sealed, unsure_position, producers), rest


def _scan_head(path: str, frames: FrameStream, base: int, log_id: str) -> tuple[SegmentHead, Producers]:
    """Read the schema frame. It was durable before the file got its name, so a bad one is never a torn tail."""
    try:
        frame = frames.next()
    except BadFrame as error:
        raise CorruptLog(path, 0, f"the schema frame is bad: {error}") from None
    if frame is None:
        raise CorruptLog(path, 0, "the schema frame is missing")
    if frame.offset != base:
        raise CorruptLog(path, 0, f"the file begins at offset {frame.offset}, not where its name says")
    head = unpack_head(path, frame)
    check_owner(path, head, log_id)
    try:
        text = producers_text(frame)
        return head, Producers.from_text(text, base) if text else Producers()
    except BadProducers as error:
        raise CorruptLog(path, 0, str(error)) from None


def _replay(path: str, frame: Frame, rows: pa.RecordBatch, producers: Producers) -> None:
    """Apply the frame's producers to the known state."""
    text = sent_text(path, frame, rows.schema)
    if not text:
        return
    try:
        for row, count, sent in sent_from_text(text, rows.num_rows):
            producers.replay(sent, count, frame.offset + row)
    except BadProducers as error:
        raise CorruptLog(path, frame.position, str(error)) from None


def _times_in_order(path: str, frame: Frame, times_us: TimesUs, before_us: int) -> int:
    if int(times_us[0]) < before_us or (times_us[1:] < times_us[:-1]).any():
        raise CorruptLog(path, frame.position, "the append times step back")
    return int(times_us[-1])


def refuse_if_acknowledged(segment: Segment, scan: Scan, rest: memoryview) -> None:
    """Raise if a bad frame is corruption, not a torn tail: something after it proves that it was synced."""
    for frame in find_frames(rest, 0, scan.end_position, scan.end):
        if scan.head.sync_mode is SyncMode.ALWAYS or (frame.is_mark and frame.offset > scan.end):
            raise CorruptLog(
                str(segment.path),
                scan.end_position,
                f"{scan.bad}, yet a valid frame with offset {frame.offset} follows at byte {frame.position}",
            )


def _cut(disk: Disk, file: File, segment: Segment, scan: Scan, rest: memoryview) -> Torn:
    """Keep the torn bytes durably in another file before they are cut."""
    folder = segment.path.parent
    kept_as = unused_name(disk, segment.path, scan.end_position, TORN_SUFFIX)
    with temporary_disk_errors(kept_as):
        write_new(disk, kept_as, bytes(rest).rstrip(b"\0"))
        disk.sync_folder(folder)
    file.truncate(scan.end_position)
    assert scan.bad is not None
    return Torn(segment.path, scan.end_position, kept_as, scan.bad)


def unused_name(disk: Disk, path: Path, position: int, suffix: str) -> Path:
    """Return a name next to a segment for bytes removed from it at `position`."""
    taken = {entry.name for entry in disk.list(path.parent)}
    for count in range(len(taken) + 1):
        name = f"{path.stem}.{position}{f'.{count}' if count else ''}{suffix}"
        if name not in taken:
            return path.parent / name
    raise AssertionError("more names than files are taken")


def _last_time_us(disk: Disk, segment: Segment, log_id: str) -> int:
    file = open_to_read(disk, segment.path)
    try:
        scan, _ = scan_segment(file, segment, log_id)
    finally:
        file.close()
    return scan.last_time_us

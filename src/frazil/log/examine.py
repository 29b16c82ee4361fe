"""Segments read in full, judged as recovery judges them; `check` reports what is found, `repair` acts on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.core.disk import Disk, File
from frazil.core.errors import CorruptLog, SchemaMismatch
from frazil.core.memory_disk import MemoryDisk
from frazil.core.names import TopicName
from frazil.core.rows import ENVELOPE, check_change
from frazil.log.format import BadFrame, SegmentHead
from frazil.log.records import open_to_read
from frazil.log.recovery import Scan, check_seal, refuse_if_acknowledged, scan_segment
from frazil.log.segment import Segment
from frazil.log.segment_reader import FrameStream

OnSegment = Callable[[Segment], None]


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first byte that is not right, and why."""

    path: str
    position: int
    reason: str

    @classmethod
    def of(cls, error: CorruptLog) -> Flaw:
        return cls(error.path, error.position, error.reason)

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "position": self.position, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Examined:
    """One segment as far as it is good: `end` and `end_position` stand behind its last good frame."""

    segment: Segment
    head: SegmentHead | None
    frames: int
    end: int
    end_position: int
    last_time_us: int
    flaw: Flaw | None = None
    torn: Flaw | None = None
    in_flight: bool = False
    seal_only: bool = False
    """Every row is there up to the next segment; only the closing mark is wrong."""


def examine_segments(
    disk: Disk,
    name: TopicName,
    segments: Sequence[Segment],
    log_id: str,
    stored: pa.Schema | None,
    *,
    owned: bool = False,
    past_bad_seals: bool = False,
    unreadable_is_a_flaw: bool = True,
    on_segment: OnSegment | None = None,
) -> Iterator[Examined]:
    """Segment by segment, up to and including the first that has a flaw.

    A read that the disk refuses says nothing of the bytes. Who only looks may take it for a flaw; who cuts may not, and
    gets the `OSError`.
    """
    time_us = 0
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        try:
            found = _examine(disk, segment, log_id, following, owned=owned)
        except FileNotFoundError:
            raise  # removed by its owner meanwhile: the caller looks at the folder anew
        except OSError as error:
            if not unreadable_is_a_flaw:
                raise
            found = _nothing_good(segment, Flaw(str(segment.path), 0, f"cannot be read ({error.strerror or error})"))
        if found.flaw is None or found.seal_only:
            found = _in_its_place(found, name, stored, time_us)
        if on_segment is not None:
            on_segment(segment)
        yield found
        if found.flaw is not None and not (past_bad_seals and found.seal_only):
            return
        time_us = max(time_us, found.last_time_us)


class _Counted(Segment):
    """Counts the frames that a scan passes."""

    frames = 0

    def note(self, offset: int, position: int) -> None:
        self.frames += 1
        super().note(offset, position)


def _prefix(file: File, size: int) -> File:
    """A file as if it ended at `size`: to learn what stands before a flaw."""
    copy = MemoryDisk().open(Path("/prefix"), "create")
    copy.write([file.read(size, 0)], 0)
    return copy


def _examine(disk: Disk, segment: Segment, log_id: str, following: Segment | None, *, owned: bool) -> Examined:
    file = open_to_read(disk, segment.path)
    try:
        segment.used_bytes = segment.allocated_bytes = file.size()
        found = _scanned(file, segment, log_id, is_last=following is None, owned=owned)
        if following is not None:
            found = _with_seal(disk, found, following)
    finally:
        file.close()
    return found


def _scanned(file: File, segment: Segment, log_id: str, *, is_last: bool, owned: bool) -> Examined:
    counted = _counted(segment)
    try:
        scan, rest = scan_segment(file, counted, log_id)
    except CorruptLog as error:
        return _before(file, segment, log_id, Flaw.of(error))
    found = _from_scan(segment, counted, scan)
    if scan.bad is None:
        return found
    flaw = Flaw(str(segment.path), scan.end_position, scan.bad)
    if not is_last:
        return replace(found, flaw=flaw)
    if owned and is_good_now(file, scan.end_position):
        return replace(found, in_flight=True)
    try:
        refuse_if_acknowledged(segment, scan, rest)
    except CorruptLog as error:
        return replace(found, flaw=Flaw.of(error))
    return replace(found, in_flight=True) if owned else replace(found, torn=flaw)


def _counted(segment: Segment) -> _Counted:
    return _Counted(segment.base, segment.path, segment.used_bytes, segment.allocated_bytes, sealed=True)


def _from_scan(segment: Segment, counted: _Counted, scan: Scan) -> Examined:
    segment.first_time_us, segment.index = counted.first_time_us, counted.index
    return Examined(segment, scan.head, counted.frames, scan.end, scan.end_position, scan.last_time_us)


def is_good_now(file: File, position: int) -> bool:
    """What stands behind a bad frame was read later than the frame: if that is good by now, its owner was faster."""
    try:
        return FrameStream(file, position).next() is not None
    except BadFrame:
        return False


def _before(file: File, segment: Segment, log_id: str, flaw: Flaw) -> Examined:
    """What is good before a flaw that ended the scan."""
    if flaw.position == 0:
        return _nothing_good(segment, flaw)
    counted = _counted(segment)
    scan, _ = scan_segment(_prefix(file, flaw.position), counted, log_id)
    return replace(_from_scan(segment, counted, scan), flaw=flaw)


def _nothing_good(segment: Segment, flaw: Flaw) -> Examined:
    return Examined(segment, None, 0, segment.base, 0, 0, flaw)


def _with_seal(disk: Disk, found: Examined, following: Segment) -> Examined:
    """A segment that is not the last ends with a mark where the next begins."""
    whole = found.head is not None and found.end == following.base
    if found.flaw is not None:
        at_the_end = found.flaw.position == found.end_position
        return replace(found, seal_only=whole and at_the_end)
    try:
        check_seal(disk, found.segment, following.base)
    except CorruptLog as error:
        return replace(found, flaw=Flaw.of(error), seal_only=whole)
    return found


def _in_its_place(found: Examined, name: TopicName, stored: pa.Schema | None, time_us: int) -> Examined:
    """A good segment must also belong here: of this topic, with columns that fit, and not older than the last."""
    assert found.head is not None
    path = str(found.segment.path)
    if found.head.topic != str(name):
        return _nothing_good(found.segment, Flaw(path, 0, f"this segment belongs to {found.head.topic}"))
    misfit = None if stored is None else _misfit(found.head.schema, stored)
    if misfit is not None:
        return _nothing_good(found.segment, Flaw(path, 0, f"its columns are not the topic's: {misfit}"))
    first_us = found.segment.first_time_us
    if first_us is not None and first_us < time_us:
        offset, position = found.segment.index[0]
        flaw = Flaw(path, position, "the append times step back behind the segment before")
        return Examined(found.segment, found.head, 0, offset, position, time_us, flaw)
    return found


def _misfit(schema: pa.Schema, stored: pa.Schema) -> str | None:
    if schema.equals(stored):
        return None
    if stored.equals(ENVELOPE):
        return "a message topic has only the columns of the envelope"
    try:
        check_change(schema, stored)
    except SchemaMismatch as error:
        return error.message
    return None

"""Read segments completely, by the rules of recovery; `check` reports the result, `repair` acts on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.core.disk import Disk, File
from frazil.core.disk.memory import MemoryDisk
from frazil.core.errors import CorruptLog, NewerFormat, SchemaMismatch
from frazil.core.names import TopicName
from frazil.core.rows import ENVELOPE, check_change
from frazil.log.format.frames import BadFrame, SegmentHead
from frazil.log.format.records import open_to_read
from frazil.log.read.segment_reader import FrameStream
from frazil.log.repair.recovery import Scan, check_seal, refuse_if_acknowledged, scan_segment
from frazil.log.write.segment import Segment

OnSegment = Callable[[Segment], None]


@dataclass(frozen=True, slots=True)
class Flaw:
    """The first wrong byte, and the reason."""

    path: str
    position: int
    reason: str
    newer: NewerFormat | None = field(default=None, compare=False)
    """Set where a newer version wrote the file: there is nothing to repair."""

    @classmethod
    def of(cls, error: CorruptLog) -> Flaw:
        newer = error if isinstance(error, NewerFormat) else None
        return cls(error.path, error.position, error.reason, newer)

    def as_dict(self) -> dict[str, Any]:
        return {"path": self.path, "position": self.position, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Examined:
    """One segment as far as it is good: `end` and `end_position` are after its last good frame."""

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
    """All rows up to the next segment are valid; only the closing mark is wrong."""


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
    """Examine the segments up to and including the first with a flaw.

    A refused read says nothing about the bytes. A check may treat it as a flaw; a repair must not, and gets the
    `OSError`.
    """
    time_us = 0
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        try:
            found = _examine(disk, segment, log_id, following, owned=owned)
        except FileNotFoundError:
            raise  # removed by its owner meanwhile: the caller lists the folder again
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


class _CountedRows(Segment):
    """Counts the frames of a scan."""

    frames = 0

    def note(self, offset: int, position: int) -> None:
        self.frames += 1
        super().note(offset, position)


def _prefix(file: File, size: int) -> File:
    """Present a file as if it ended at `size`, to read what precedes a flaw."""
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


def _counted(segment: Segment) -> _CountedRows:
    return _CountedRows(segment.base, segment.path, segment.used_bytes, segment.allocated_bytes, sealed=True)


def _from_scan(segment: Segment, counted: _CountedRows, scan: Scan) -> Examined:
    segment.first_time_us, segment.index = counted.first_time_us, counted.index
    return Examined(segment, scan.head, counted.frames, scan.end, scan.end_position, scan.last_time_us)


def is_good_now(file: File, position: int) -> bool:
    """Whether the frame is good now: the bytes after a bad frame were read later, so its owner may
    have completed it.
    """
    try:
        return FrameStream(file, position).next() is not None
    except BadFrame:
        return False


def _before(file: File, segment: Segment, log_id: str, flaw: Flaw) -> Examined:
    """Return what is good before the flaw that ended the scan."""
    if flaw.position == 0:
        return _nothing_good(segment, flaw)
    counted = _counted(segment)
    scan, _ = scan_segment(_prefix(file, flaw.position), counted, log_id)
    return replace(_from_scan(segment, counted, scan), flaw=flaw)


def _nothing_good(segment: Segment, flaw: Flaw) -> Examined:
    return Examined(segment, None, 0, segment.base, 0, 0, flaw)


def _with_seal(disk: Disk, found: Examined, following: Segment) -> Examined:
    """Check the mark at the end of a segment that is not the last, at the next one's offset."""
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
    """Check that a good segment belongs here: same topic, matching columns, and not older than the previous one."""
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

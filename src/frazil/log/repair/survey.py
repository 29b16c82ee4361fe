"""Describe topics and segments from the files alone, without locking or changing anything.

An owner may be writing at the same time; the result may then be slightly stale. A log that its next owner would refuse
is reported as a problem, by the same rules: the loss of acknowledged rows must not go unnoticed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from frazil.core.disk import Disk, File
from frazil.core.errors import SEE_CHECK, CorruptLog, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.partitions import topic_not_found, topic_or_partitions
from frazil.core.settings import AckLevel
from frazil.log.folder.catalog import read_topic_record
from frazil.log.folder.layout import topic_folder, topic_names
from frazil.log.format.frames import BadFrame, Frame, SegmentHead, producers_text, sent_text, unpack_batch, unpack_head
from frazil.log.format.records import open_to_read
from frazil.log.read.segment_reader import FrameStream, SegmentReader, append_times_us
from frazil.log.repair.check import read_ends
from frazil.log.repair.examine import is_good_now
from frazil.log.repair.recovery import check_beginning, list_segments, refuse_if_acknowledged, scan_segment
from frazil.log.summary import LogSummary
from frazil.log.write.producers import BadProducers, Producers, SentRows, sent_from_text
from frazil.log.write.segment import Segment

_BEHIND_ALL = 2**63 - 1
_LOOKS_MAX = 5


def describe_topic(disk: Disk, folder: Path, name: TopicName) -> LogSummary:
    there = topic_names(disk, folder)
    if name not in there:
        raise topic_not_found(name, there)
    return summarize(disk, folder, name, read_ends(disk, folder)[0])


def describe_logs(disk: Disk, folder: Path, name: TopicName) -> list[LogSummary]:
    """Describe a topic, or its partitions in order."""
    there = topic_names(disk, folder)
    names = topic_or_partitions(name, there)
    if names[0] not in there:
        raise TopicNotFound(str(name))
    ends = read_ends(disk, folder)[0]
    return [summarize(disk, folder, one, ends) for one in names]


def summarize(disk: Disk, folder: Path, name: TopicName, ends: Mapping[str, Any]) -> LogSummary:
    """Summarize a topic; tries again if something was wrong, because its owner may have been at work.

    `ends` is the content of `~ends` before the look.
    """
    found = _summarize(disk, folder, name, ends)
    for _ in range(_LOOKS_MAX):
        before, found = found, _summarize(disk, folder, name, ends) if found.problem else found
        if found.problem == before.problem:
            break
    return found


def _summarize(disk: Disk, folder: Path, name: TopicName, ends: Mapping[str, Any]) -> LogSummary:
    problem: str | None = None
    record, end = None, None
    segments: list[Segment] = []
    try:
        segments = list_segments(disk, topic_folder(folder, name))
        record = read_topic_record(disk, folder, name)
        check_beginning(topic_folder(folder, name), segments, record.first_offset)
        end = _end_of(disk, segments[-1], record.log_id) if segments else 0
        known = int(ends.get(record.log_id, {"end": 0})["end"])
        if record.ack is AckLevel.OBJECT:
            # The rows behind may not be in the object store; only the owner asks. Those of an adopted log are there.
            end = min(end, max(known, record.first_offset))
        elif end < known:
            problem = f"the log ends at offset {end}, but offsets up to {known} were acknowledged{SEE_CHECK}"
    except CorruptLog as error:
        problem = error.message
    except FileNotFoundError:
        problem = "it was deleted, or a segment removed, during the look"
    except OSError as error:
        problem = f"it cannot be read ({error.strerror or error})"
    first = segments[0].base if segments else 0
    return LogSummary(
        topic=str(name),
        log_id=record.log_id if record else None,
        typed=record.schema is not None if record else None,
        messages=None if end is None else end - first,
        first_offset=first,
        end=end,
        segments=len(segments),
        bytes=sum(segment.used_bytes for segment in segments),
        created_us=record.created_us if record else None,
        schema=record.schema if record else None,
        retention=record.retention if record else None,
        ack=record.ack.value if record else None,
        problem=problem,
    )


def _end_of(disk: Disk, segment: Segment, log_id: str) -> int:
    """Return the end of the last segment's rows: by following headers, or by a full scan if that does not reach the end
    of the written bytes.
    """
    try:
        end = _hop_to_end(disk, segment)
    except CorruptLog:
        end = None
    return _scan_to_end(disk, segment, log_id) if end is None else end


def _scan_to_end(disk: Disk, segment: Segment, log_id: str) -> int:
    """A torn tail is not counted. A tail that a later frame proves to have been acknowledged is not torn."""
    file = open_to_read(disk, segment.path)
    try:
        scan, rest = scan_segment(file, segment, log_id)
        if scan.bad is not None and not is_good_now(file, scan.end_position):
            refuse_if_acknowledged(segment, scan, rest)
        return scan.end
    finally:
        file.close()


def _hop_to_end(disk: Disk, segment: Segment) -> int | None:
    """Return None if bytes follow the last frame found."""
    reader = SegmentReader(disk, segment)
    try:
        reader.seek(_BEHIND_ALL)
        batch = reader.next()
        if not reader.is_at_end:
            return None
    finally:
        reader.close()
    if batch is not None:
        return batch.end
    return segment.base if reader.offset == _BEHIND_ALL else reader.offset


class FrameInfo(NamedTuple):
    kind: str
    position: int
    offset: int
    rows: int
    bytes: int
    time_us: int | None
    sent: tuple[SentRows, ...] = ()
    """The rows that their producer numbered."""

    def as_dict(self) -> dict[str, Any]:
        return {**self._asdict(), "sent": [_sent(self.offset, one) for one in self.sent]}


def _sent(offset: int, one: SentRows) -> dict[str, Any]:
    sent = one.sent
    numbering = {"producer": sent.producer, "epoch": sent.epoch, "sequence": sent.sequence}
    return {"offset": offset + one.row, "rows": one.rows, **numbering}


class SegmentFrames:
    """One segment file, frame by frame, for inspection. Iteration raises `CorruptLog` at a bad frame."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self.path = path
        self._file: File = open_to_read(disk, path)
        self._frames = FrameStream(self._file)
        try:
            self.size_bytes = self._file.size()
            first = self._next()
            if first is None:
                raise CorruptLog(str(path), 0, "the file has no schema frame")
            self.base = first.offset
            self.head: SegmentHead = unpack_head(str(path), first)
            self.producers = self._producers(first)
        except BaseException:
            self.close()
            raise
        self._first = FrameInfo("schema", 0, first.offset, 0, first.end_position, None)

    @property
    def position(self) -> int:
        """The position after the last frame read."""
        return self._frames.position

    def __iter__(self) -> Iterator[FrameInfo]:
        yield self._first
        expected = self.base
        while (frame := self._next()) is not None:
            if frame.offset != expected:
                reason = f"offset {frame.offset} stands where {expected} belongs"
                raise CorruptLog(str(self.path), frame.position, reason)
            info = self._info(frame)
            expected += info.rows
            yield info

    def close(self) -> None:
        self._file.close()

    def _info(self, frame: Frame) -> FrameInfo:
        size = frame.end_position - frame.position
        if frame.is_mark:
            return FrameInfo("mark", frame.position, frame.offset, 0, size, None)
        rows = unpack_batch(str(self.path), frame, self.head.schema)
        time_us = int(append_times_us(rows)[0])
        return FrameInfo("rows", frame.position, frame.offset, rows.num_rows, size, time_us, self._sent(frame, rows))

    def _producers(self, first: Frame) -> Producers:
        """Return the producers known when the segment began."""
        try:
            text = producers_text(first)
            return Producers.from_text(text, self.base) if text else Producers()
        except BadProducers as error:
            raise CorruptLog(str(self.path), 0, str(error)) from None

    def _sent(self, frame: Frame, rows: pa.RecordBatch) -> tuple[SentRows, ...]:
        text = sent_text(str(self.path), frame, rows.schema)
        try:
            return tuple(sent_from_text(text, rows.num_rows)) if text else ()
        except BadProducers as error:
            raise CorruptLog(str(self.path), frame.position, str(error)) from None

    def _next(self) -> Frame | None:
        """Read again if needed: the read-ahead may hold only part of what the owner has written since."""
        try:
            return self._frames.next()
        except BadFrame:
            self._frames.forget()
        try:
            return self._frames.next()
        except BadFrame as error:
            raise CorruptLog(str(self.path), self._frames.position, str(error)) from None

"""Cut a segment file into objects, at frames.

    SegmentCutter   walks the frames of one segment once, and says which of them become the next object
    SegmentPiece           those frames, as places in the file; its bytes are read when it is stored

The file is read, never the cache: what reaches the store is what the disk has. Every frame is checked on the way.
Marks between frames are left out: an object depends only on its rows and on where it begins and ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from isal.isal_zlib import crc32

from frazil.core.disk import Disk, File
from frazil.core.errors import CorruptLog
from frazil.log.format.frames import (
    HEADER_BYTES,
    MARK_BYTES,
    BadFrame,
    Frame,
    SegmentHead,
    check_owner,
    frame_claim,
    pack_head,
    producers_text,
    sent_text,
    unpack_batch,
    unpack_frame,
    unpack_head,
)
from frazil.log.format.records import open_to_read
from frazil.log.read.segment_reader import FrameStream, append_times_us
from frazil.log.write.producers import BadProducers, Producers, sent_from_text
from frazil.log.write.segment import Segment
from frazil.objects.packing import pack_object

READ_BYTES_MIN = 64 * 1024


@dataclass(frozen=True, slots=True)
class SegmentPiece:
    """Rows of one segment that become one object."""

    path: Path
    first: int
    end: int
    head: SegmentHead
    producers: bytes
    """The state of the producers at `first`, as in the schema frame of a segment."""
    runs: tuple[tuple[int, int], ...]
    """Where the batch frames are in the file: from and up to each position."""
    crc: int
    """Of the bytes of these frames."""
    first_time_us: int
    last_time_us: int

    def content(self, disk: Disk, stored: int) -> bytes:
        """Read the frames and return the object. Raises `CorruptLog` if they have changed since they were checked."""
        frames: list[bytes] = []
        crc = 0
        file = open_to_read(disk, self.path)
        try:
            for start, stop in self.runs:
                data = file.read(stop - start, start)
                crc = crc32(data, crc)
                frames.append(data)
        finally:
            file.close()
        if crc != self.crc:
            raise CorruptLog(str(self.path), self.runs[0][0], "the frames have changed since they were read")
        return b"".join(pack_object(self.first, self.end, self.head, self.producers, frames, stored=stored))


class SegmentCutter:
    """The frames of one segment in order. `offset` is where the next piece begins."""

    def __init__(self, disk: Disk, segment: Segment, log_id: str) -> None:
        self._disk = disk
        self._segment = segment
        self._path = str(segment.path)
        file = open_to_read(disk, segment.path)
        try:
            frame = FrameStream(file).next()
        except BadFrame as error:
            raise CorruptLog(self._path, 0, f"the schema frame is bad: {error}") from None
        finally:
            file.close()
        if frame is None:
            raise CorruptLog(self._path, 0, "the schema frame is missing")
        self._head = unpack_head(self._path, frame)
        check_owner(self._path, self._head, log_id)
        text = producers_text(frame)
        try:
            self._producers = Producers.from_text(text, segment.base) if text else Producers()
        except BadProducers as error:
            raise CorruptLog(self._path, 0, str(error)) from None
        self._position = frame.end_position
        self.base = segment.base
        self.offset = segment.base

    def skip_to(self, offset: int, bytes_max: int) -> None:
        """Pass over the rows before `offset`, which are stored; raises `CorruptLog` if no frame begins there."""
        while self.offset < offset:
            if self.next(offset, bytes_max) is None:
                raise CorruptLog(self._path, self._position, f"no frame begins at offset {offset}")
        if self.offset != offset:
            raise CorruptLog(self._path, self._position, f"offset {offset} is inside a frame")

    def next(self, end: int, bytes_max: int) -> SegmentPiece | None:
        """Return the next object: rows below `end`, at most so many bytes; None if there are none.

        A frame that is larger alone is an object of its own. `end` is where a frame ends, up to which rows are durable.
        """
        if self.offset >= end:
            return None
        first, producers = self.offset, self._producers.as_text()
        room = bytes_max - len(pack_head(first, self._head, producers)) - MARK_BYTES
        file = open_to_read(self._disk, self._segment.path)
        try:
            frames, runs, crc = self._take(file, end, room)
        finally:
            file.close()
        last = self._rows(frames[-1])
        self.offset = frames[-1].offset + last.num_rows
        if self.offset > end:
            raise CorruptLog(self._path, frames[-1].position, f"offset {end} is inside a frame")
        self._position = frames[-1].end_position
        times_us = append_times_us(self._rows(frames[0])), append_times_us(last)
        place = (self._segment.path, first, self.offset, self._head, producers, runs, crc)
        return SegmentPiece(*place, int(times_us[0][0]), int(times_us[1][-1]))

    def _take(self, file: File, end: int, room: int) -> tuple[list[Frame], tuple[tuple[int, int], ...], int]:
        """Return the batch frames of the next piece, checked, with their places and the CRC of their bytes."""
        start = self._position
        data = memoryview(file.read(min(max(room, READ_BYTES_MIN), self._segment.used_bytes - start), start))
        taken: list[Frame] = []
        runs: list[tuple[int, int]] = []
        at = used = 0
        while (claim := _claim(data, at)) is not None and claim[0] < end:
            size = HEADER_BYTES + claim[1]
            if not taken and at + size > len(data):  # larger than an object should be: it becomes one alone
                start, at = start + at, 0
                data = memoryview(file.read(min(size, self._segment.used_bytes - start), start))
            elif taken and (at + size > len(data) or used + size > room):
                break
            frame = self._checked(data, at, start + at)
            at += size
            if frame.is_mark:
                continue
            if frame.offset <= taken[-1].offset if taken else frame.offset != self.offset:
                raise CorruptLog(self._path, frame.position, f"offset {frame.offset} stands where it cannot be")
            self._replay(frame)
            taken.append(frame)
            used += size
            runs[-1:] = _extended(runs[-1:], frame)
        if not taken:
            raise CorruptLog(self._path, self._position, f"offset {self.offset} is missing, and the log ends at {end}")
        crc = 0
        for run_start, run_stop in runs:
            crc = crc32(data[run_start - start : run_stop - start], crc)
        return taken, tuple(runs), crc

    def _checked(self, data: memoryview, at: int, position: int) -> Frame:
        try:
            return unpack_frame(data, at, position)
        except BadFrame as error:
            raise CorruptLog(self._path, position, str(error)) from None

    def _replay(self, frame: Frame) -> None:
        """Apply the frame's producers: their state at the end of this piece is that at the start of the next."""
        text = sent_text(self._path, frame, self._head.schema)
        if not text:
            return
        try:
            for row, count, sent in sent_from_text(text, self._rows(frame).num_rows):
                self._producers.replay(sent, count, frame.offset + row)
        except BadProducers as error:
            raise CorruptLog(self._path, frame.position, str(error)) from None

    def _rows(self, frame: Frame) -> pa.RecordBatch:
        return unpack_batch(self._path, frame, self._head.schema)


def _claim(data: memoryview, at: int) -> tuple[int, int] | None:
    """Return offset and payload length of the next frame; None where the data ends, or nothing was written."""
    if at + HEADER_BYTES > len(data):
        return None
    claim = frame_claim(data, at)
    return claim if claim[1] else None


def _extended(last: list[tuple[int, int]], frame: Frame) -> list[tuple[int, int]]:
    """Return the last run with the frame, or both of them if a mark is between."""
    if last and last[0][1] == frame.position:
        return [(last[0][0], frame.end_position)]
    return [*last, (frame.position, frame.end_position)]

"""Read a segment file, in this process or another, while its owner may be appending to it.

A reader takes no lock. It is safe up to the durable end, which its caller knows as an offset.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from frazil.core.disk import Disk, File
from frazil.core.errors import CorruptLog
from frazil.core.settings import KIB, MIB
from frazil.log.format.frames import (
    HEADER_BYTES,
    BadFrame,
    Frame,
    SegmentHead,
    check_owner,
    frame_claim,
    unpack_batch,
    unpack_frame,
    unpack_head,
)
from frazil.log.format.records import open_to_read
from frazil.log.write.segment import INDEX_STEP_BYTES, Segment

CHUNK_HOP_BYTES = 4 * KIB
CHUNK_FIRST_BYTES = 64 * KIB
CHUNK_MAX_BYTES = 4 * MIB
_NOTHING = bytes(HEADER_BYTES)

TimesUs: TypeAlias = "np.ndarray[tuple[int], np.dtype[np.int64]]"


class StoredBatch(NamedTuple):
    """Rows as stored, with the offset of the first and the position of their frame."""

    offset: int
    rows: pa.RecordBatch
    position: int

    @property
    def end(self) -> int:
        return self.offset + int(self.rows.num_rows)


class FrameStream:
    """The frames of a file from a position on, read in growing chunks."""

    def __init__(self, file: File, position: int = 0) -> None:
        self._file = file
        self._chunk = memoryview(b"")
        self._chunk_position = position
        self._chunk_bytes = CHUNK_FIRST_BYTES
        self.position = position

    def next(self) -> Frame | None:
        """Return the next frame; None at the end of the file or at unwritten zeros."""
        claim = self.peek()
        if claim is None:
            return None
        self._have(HEADER_BYTES + claim[1])
        frame = unpack_frame(self._chunk, self.position - self._chunk_position, self.position)
        self.position = frame.end_position
        return frame

    def peek(self) -> tuple[int, int] | None:
        """Return the next header's offset and payload length, unchecked; None where `next` returns None."""
        self._have(HEADER_BYTES)
        at = self.position - self._chunk_position
        left = self._chunk[at : at + HEADER_BYTES]
        if left == _NOTHING[: len(left)]:
            return None
        if len(left) < HEADER_BYTES:
            raise BadFrame(f"{len(left)} bytes are left, a header has {HEADER_BYTES}")
        return frame_claim(self._chunk, at)

    def skip(self, payload_bytes: int) -> None:
        """Skip a frame. Skipping large frames reads only headers."""
        self.position += HEADER_BYTES + payload_bytes
        if self.position > self._chunk_position + len(self._chunk):
            self._chunk_bytes = CHUNK_HOP_BYTES

    def forget(self) -> None:
        """Drop the read-ahead: the file may have been written since."""
        self._chunk = memoryview(b"")
        self._chunk_position = self.position

    def rest(self) -> memoryview:
        """Return everything from here to the end of the file."""
        size, at = self._file.size(), self.position - self._chunk_position
        if self._chunk_position + len(self._chunk) == size:
            return self._chunk[at:]  # already read ahead
        return memoryview(self._file.read(max(0, size - self.position), self.position))

    def _have(self, count: int) -> None:
        """Make `count` bytes from the position on available, or as many as there are."""
        at = self.position - self._chunk_position
        if at + count <= len(self._chunk):
            return
        if count > self._chunk_bytes:
            count = min(count, self._file.size() - self.position)  # an invalid length must not request gigabytes
        want = self._chunk_bytes
        if count > want // 4:
            want = count + HEADER_BYTES  # a large frame alone, and the header after it: nothing is read twice
        else:
            self._chunk_bytes = min(want * 2, CHUNK_MAX_BYTES)
        self._chunk = memoryview(self._file.read(want, self.position))
        self._chunk_position = self.position


class SegmentReader:
    """The batches of one segment, each checked, in order and without a gap."""

    def __init__(self, disk: Disk, segment: Segment) -> None:
        self._segment = segment
        self._path = str(segment.path)
        self._file = open_to_read(disk, segment.path)
        self._frames = FrameStream(self._file)
        try:
            self.head = self._read_head()
        except BaseException:
            self.close()
            raise
        self.offset = segment.base

    @property
    def path(self) -> str:
        return self._path

    @property
    def position(self) -> int:
        return self._frames.position

    @property
    def is_at_end(self) -> bool:
        """Whether nothing was ever written after what was read."""
        return not any_bytes(self._frames.rest())

    def close(self) -> None:
        self._file.close()

    def next(self) -> StoredBatch | None:
        """Return the next batch; None at the end of the file. The caller never reads beyond the durable end."""
        while True:
            frame = self._next_frame()
            if frame is None:
                return None
            if frame.offset != self.offset:
                raise CorruptLog(
                    self._path, frame.position, f"offset {frame.offset} stands where {self.offset} belongs"
                )
            if frame.is_mark:
                continue
            batch = StoredBatch(frame.offset, unpack_batch(self._path, frame, self.head.schema), frame.position)
            self.offset = batch.end
            return batch

    def seek(self, offset: int) -> None:
        """Seek to the batch that holds `offset`, by following headers."""
        self._frames.position = max(self._segment.position_before(offset), self._frames.position)
        passed: list[tuple[int, int]] = []
        found = self._frames.position
        self.offset = offset
        try:
            while (claim := self._frames.peek()) is not None and claim[0] <= offset:
                found, self.offset = self._frames.position, claim[0]
                if not passed or found >= passed[-1][1] + INDEX_STEP_BYTES:
                    passed.append((claim[0], found))
                self._frames.skip(claim[1])
        except BadFrame as error:
            raise CorruptLog(self._path, self._frames.position, str(error)) from None
        self._frames.position = found
        self._frames.forget()
        if self._segment.sealed and passed:  # only the writer indexes a growing segment
            known = [place for place in self._segment.index if place[1] < passed[0][1]]
            if len(known) + len(passed) > len(self._segment.index):
                self._segment.index = known + passed

    def __iter__(self) -> Iterator[StoredBatch]:
        while (batch := self.next()) is not None:
            yield batch

    def _next_frame(self) -> Frame | None:
        """Read again before reporting a bad frame: the read-ahead may be older than the durable end."""
        try:
            frame = self._frames.next()
        except BadFrame:
            frame = None
        if frame is not None:
            return frame
        self._frames.forget()
        try:
            return self._frames.next()
        except BadFrame as error:
            raise CorruptLog(self._path, self._frames.position, str(error)) from None

    def _read_head(self) -> SegmentHead:
        frame = self._next_frame()
        if frame is None:
            raise CorruptLog(self._path, 0, "the file has no schema frame")
        if frame.offset != self._segment.base:
            raise CorruptLog(self._path, 0, f"the file begins at offset {frame.offset}, not where its name says")
        head = unpack_head(self._path, frame)
        if self._segment.log_id is not None:
            check_owner(self._path, head, self._segment.log_id)
        return head


def first_time_us(disk: Disk, segment: Segment) -> int | None:
    """Return the append time of a segment's first row, read once; None if it has no row."""
    if segment.first_time_us is None:
        reader = SegmentReader(disk, segment)
        try:
            batch = reader.next()
        finally:
            reader.close()
        segment.first_time_us = None if batch is None else int(append_times_us(batch.rows)[0])
    return segment.first_time_us


def append_times_us(rows: pa.RecordBatch) -> TimesUs:
    column = rows.column("_append_time")
    values = np.frombuffer(column.buffers()[1], dtype=np.int64)
    return values[column.offset : column.offset + len(column)]


def any_bytes(data: memoryview) -> bool:
    return bytes(data).count(0) != len(data)

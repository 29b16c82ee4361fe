"""Read a range of a log from its segment files, in this process or another, with or without the owner.

The caller knows from the owner that the range is durable; nothing beyond it is read.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog, FrazilError
from frazil.core.offsets import OffsetRange
from frazil.core.rows import joined, upgraded, with_offsets
from frazil.log.read.segment_reader import SegmentReader
from frazil.log.write.segment import Segment

GATHER_BYTES = 1024 * 1024


def read_range(
    disk: Disk, log_id: str, files: Sequence[tuple[int, Path]], wanted: OffsetRange, stored: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield batches with `_offset`, exactly the range, in the topic's current schema.

    `files` are the segments' first offsets and paths, in order.
    """
    return gathered(_frames(disk, log_id, files, wanted, stored), wanted.start)


def gathered(frames: Iterator[tuple[pa.RecordBatch, int]], start: int) -> Iterator[pa.RecordBatch]:
    """Join small frames into batches worth their overhead; large frames are passed unchanged.

    Complete rows before a bad frame are returned before the error.
    """
    held: list[pa.RecordBatch] = []
    held_bytes = 0
    try:
        for rows, size_bytes in frames:
            if held and held_bytes + size_bytes > GATHER_BYTES:
                yield with_offsets(joined(held), start)
                start += sum(each.num_rows for each in held)
                held, held_bytes = [], 0
            held.append(rows)
            held_bytes += size_bytes
    except (FrazilError, OSError):
        if held:
            yield with_offsets(joined(held), start)
        raise
    if held:
        yield with_offsets(joined(held), start)


def _frames(
    disk: Disk, log_id: str, files: Sequence[tuple[int, Path]], wanted: OffsetRange, stored: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, int]]:
    """Yield the rows of each frame and its size on disk, exactly the range."""
    bases = [base for base, _ in files]
    at = bisect.bisect_right(bases, wanted.start) - 1
    offset = wanted.start
    while offset < wanted.end:
        if not 0 <= at < len(files):
            raise CorruptLog(str(files[-1][1]) if files else "", 0, f"no segment holds offset {offset}")
        base, path = files[at]
        reader = SegmentReader(disk, Segment(base, path, 0, 0, sealed=False, log_id=log_id))
        try:
            reader.seek(offset)
            position = reader.position
            while offset < wanted.end and (batch := reader.next()) is not None:
                skip = offset - batch.offset
                count = min(batch.end, wanted.end) - offset
                if skip < 0 or count <= 0:
                    raise CorruptLog(str(path), batch.position, f"offset {offset} is not where it belongs")
                yield upgraded(batch.rows.slice(skip, count), stored), reader.position - position
                offset += count
                position = reader.position
        finally:
            reader.close()
        at += 1


def holds(disk: Disk, base: int, path: Path, log_id: str) -> bool:
    """Whether this log's segment exists here: another host may have another folder of that name.

    A corrupt one exists too; its reader reports the problem.
    """
    try:
        reader = SegmentReader(disk, Segment(base, path, 0, 0, sealed=False))
    except OSError:
        return False
    except CorruptLog:
        return True
    try:
        return reader.head.log_id == log_id
    finally:
        reader.close()

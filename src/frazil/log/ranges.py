"""A range of a log read from its segment files, by this process or another, with or without the owner.

The caller knows from the owner that the range is durable; nothing beyond it is looked at.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog
from frazil.core.offsets import OffsetRange
from frazil.core.rows import upgraded, with_offsets
from frazil.log.segment import Segment
from frazil.log.segment_reader import SegmentReader


def read_range(
    disk: Disk, log_id: str, files: Sequence[tuple[int, Path]], wanted: OffsetRange, stored: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Batches with `_offset`, exactly the range, in the form of the topic's present schema.

    `files` are the segments' first offsets and paths, in order.
    """
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
            while offset < wanted.end and (batch := reader.next()) is not None:
                skip = offset - batch.offset
                count = min(batch.end, wanted.end) - offset
                if skip < 0 or count <= 0:
                    raise CorruptLog(str(path), batch.position, f"offset {offset} is not where it belongs")
                yield with_offsets(upgraded(batch.rows.slice(skip, count), stored), offset)
                offset += count
        finally:
            reader.close()
        at += 1


def holds(disk: Disk, base: int, path: Path, log_id: str) -> bool:
    """Whether a segment of this log is there to be read: another host may have another folder of that name.

    One that is corrupt is there all the same; whoever reads it says what is wrong.
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

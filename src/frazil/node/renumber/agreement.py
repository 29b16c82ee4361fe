"""How far a log and its table have the same rows, after the log was cut or restored from an older copy.

A row is identified by its offset and its append time: two appends at one offset never share it. Once they diverge, a
log and its table have no row in common. Otherwise another engine has changed the table, which is refused: only an
administrator can tell then which rows are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa

from frazil.core.errors import TableRefused
from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME, joined
from frazil.lake.files.checksum import RowsChecksum
from frazil.lake.read.history import TableHistory

OnRows = Callable[[int], None]
Read = Callable[[OffsetRange], Iterator[pa.RecordBatch]]


def agreed_end(history: TableHistory, read: Read, both: OffsetRange, stored: pa.Schema, on_rows: OnRows) -> int:
    """Return the first offset of `both` at which log (`read`) and table have different rows, or its end."""
    cut, at = both.end, both.start
    reader = history.read(both.start, both.end, stored)
    try:
        for mine in reader:
            start, end = int(mine.column(0)[0].as_py()), int(mine.column(0)[-1].as_py()) + 1
            if start != at:
                raise _refused(
                    history, OffsetRange(at, start), "are an accepted gap of the table, and the log has them"
                )
            theirs = joined(list(read(OffsetRange(start, end))))
            found = _parting(history, mine, theirs, is_parted=cut < both.end)
            if found is not None:
                cut = min(cut, start + found)
            at = end
            on_rows(mine.num_rows)
    finally:
        reader.close()
    if at < both.end:
        raise _refused(history, OffsetRange(at, both.end), "are not in the table")
    return cut


def append_time_us(history: TableHistory, offset: int, stored: pa.Schema) -> int:
    """Return the append time of one row of the table."""
    reader = history.read(offset, offset + 1, stored)
    try:
        for rows in reader:
            return int(_times(rows)[0])
    finally:
        reader.close()
    raise _refused(history, OffsetRange(offset, offset + 1), "are not in the table")


def _parting(history: TableHistory, mine: pa.RecordBatch, theirs: pa.RecordBatch, *, is_parted: bool) -> int | None:
    """Return the first row of a batch that differs in the log; None if all are equal. `is_parted` is for a batch after
    such a row."""
    start, same = int(mine.column(0)[0].as_py()), _times(mine) == _times(theirs)
    others = np.flatnonzero(~same)
    first = 0 if is_parted else int(others[0]) if len(others) else mine.num_rows
    again = np.flatnonzero(same[first:])
    if len(again):
        at = start + first + int(again[0])
        raise _refused(history, OffsetRange(at, at + 1), "are the same in log and table, and rows before them are not")
    if first and _crc(mine.slice(0, first)) != _crc(theirs.slice(0, first)):
        wrong = next(row for row in range(first) if _crc(mine.slice(row, 1)) != _crc(theirs.slice(row, 1)))
        raise _refused(
            history, OffsetRange(start + wrong, start + wrong + 1), "have other values than when they were moved"
        )
    return first if first < mine.num_rows else None


def _refused(history: TableHistory, where: OffsetRange, what: str) -> TableRefused:
    return TableRefused(
        f"{history.name}: offsets {where.start} up to {where.end} of {history.topic} {what}: the table was changed by "
        f"another engine, and which rows it shares with the log can't be known; rename {history.name}, which keeps its "
        "rows, and the mover creates another from the log",
        topic=str(history.topic),
        table=str(history.name),
        start=where.start,
        end=where.end,
    )


def _times(rows: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    found: np.ndarray[tuple[int], np.dtype[np.int64]] = (
        rows.column(APPEND_TIME.name).cast(pa.int64()).to_numpy(zero_copy_only=False)
    )
    return found


def _crc(rows: pa.RecordBatch) -> int:
    checksum = RowsChecksum()
    checksum.add(rows)
    return checksum.value()

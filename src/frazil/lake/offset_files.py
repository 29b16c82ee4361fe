"""Which files of a table hold which offsets of a log, and in what pieces to read them.

Files are planned by the statistics of `_offset`, never by snapshots: compaction and expiry change the files under
a reader, and not what it reads next. Files as the mover writes them follow one another, and each is read in its
own order. Files that lie across one another, as other engines may leave them, are read in windows of offsets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile
from pyiceberg.table import FileScanTask, Table
from pyiceberg.types import NestedField, PrimitiveType

from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME, OFFSET, TIME
from frazil.lake.tables import PARTITION

BEYOND = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """A data file and the offsets that it may hold: from `low` up to, and without, `high`."""

    low: int
    high: int
    task: FileScanTask = field(compare=False)

    @property
    def path(self) -> str:
        return self.task.file.file_path


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets to be read together: of one file in its own order, of several that lie across one another, or of none."""

    range: OffsetRange
    files: tuple[OffsetFile, ...]


def plan_offsets(table: Table, partition: int, wanted: OffsetRange) -> list[OffsetFile]:
    """The files that may hold some of the rows, by the lowest offset of each."""
    within = f"{OFFSET.name} >= {wanted.start} and {OFFSET.name} < {wanted.end}"
    return _planned(table, f"{PARTITION.name} = {partition} and {within}")


def plan_times(table: Table, partition: int, since_us: int) -> list[OffsetFile]:
    """The files that may hold a row appended at or after a time, by the lowest offset of each."""
    since = pa.scalar(since_us, TIME).as_py().isoformat()
    return _planned(table, f"{PARTITION.name} = {partition} and {APPEND_TIME.name} >= '{since}'")


def plan_all(table: Table, partition: int) -> list[OffsetFile]:
    return _planned(table, f"{PARTITION.name} = {partition}")


def bounds(file: DataFile, column: NestedField) -> tuple[int | None, int | None]:
    """The least and the greatest value of a column in a file, as far as its statistics say."""
    return _bound(file.lower_bounds, column), _bound(file.upper_bounds, column)


def _bound(values: dict[int, bytes] | None, column: NestedField) -> int | None:
    if not values or column.field_id not in values:
        return None
    assert isinstance(column.field_type, PrimitiveType)
    return int(from_bytes(column.field_type, values[column.field_id]))


def pieces(files: Iterable[OffsetFile], wanted: OffsetRange, window: int) -> Iterator[Piece]:
    """The range cut into pieces, in order. One without files is a gap."""
    waiting = deque(sorted(files, key=lambda file: (file.low, file.high)))
    active: list[OffsetFile] = []
    at = wanted.start
    while at < wanted.end:
        while waiting and waiting[0].low <= at:
            active.append(waiting.popleft())
        active = [file for file in active if file.high > at]
        following = min(waiting[0].low, wanted.end) if waiting else wanted.end
        if not active:
            end = following
        elif len(active) == 1 and (active[0].high <= following or following - at >= window):
            end = min(active[0].high, following)
        else:
            end = min(at + window, wanted.end)
        across = tuple(file for file in waiting if file.low < end)
        yield Piece(OffsetRange(at, end), (*active, *across))
        at = end


def _planned(table: Table, condition: str) -> list[OffsetFile]:
    column = table.schema().find_field(OFFSET.name)
    found = []
    for task in table.scan(row_filter=condition).plan_files():
        low, high = bounds(task.file, column)
        found.append(OffsetFile(0 if low is None else low, BEYOND if high is None else high + 1, task))
    return sorted(found, key=lambda file: (file.low, file.high))

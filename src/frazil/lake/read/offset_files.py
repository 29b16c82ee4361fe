"""Find the files of a table that hold given offsets of a log, and split them into pieces to read.

Files are planned by the statistics of `_offset`, never by snapshots: compaction and expiry change the files, but not
the rows that a reader needs next. Files written by the mover are disjoint, and each is read in its own order.
Overlapping files, which other engines may create, are read in windows of offsets.

Statistics of `_offset` are in the manifests, and all manifests must be read to find a few files. A reader that knows
the file of the row before its first one skips the manifests that are older than that file: see `plan_after`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.conversions import from_bytes
from pyiceberg.manifest import DataFile, DataFileContent, ManifestContent
from pyiceberg.table import FileScanTask, ManifestGroupPlanner, Table
from pyiceberg.types import NestedField, PrimitiveType

from frazil.core.offsets import OffsetRange, Place
from frazil.core.rows import APPEND_TIME, OFFSET, TIME
from frazil.lake.tables.schema import PARTITION

BEYOND = 2**63 - 1


@dataclass(frozen=True, slots=True)
class OffsetFile:
    """A data file and the offsets that it may hold: from `low` up to, but not including, `high`."""

    low: int
    high: int
    task: FileScanTask = field(compare=False)

    @property
    def path(self) -> str:
        return self.task.file.file_path


@dataclass(frozen=True, slots=True)
class Piece:
    """Offsets to be read together: of one file in its own order, of several overlapping ones, or of none."""

    range: OffsetRange
    files: tuple[OffsetFile, ...]


def plan_offsets(table: Table, partition: int, wanted: OffsetRange) -> list[OffsetFile]:
    """Return the files that may hold some of the rows, sorted by their lowest offset."""
    return _planned(table, _within(partition, wanted))


def plan_after(table: Table, partition: int, wanted: OffsetRange, place: Place) -> list[OffsetFile]:
    """Plan without the files added before that of the place, which holds the row before `wanted`.

    The mover adds rows in offset order, so this finds all of them, unless the table was rewritten since. Rows may then
    be missing, and the caller must plan again. Every row found is a current row of the table.
    """
    snapshot = table.current_snapshot()
    if snapshot is None:
        return []
    manifests = [
        manifest
        for manifest in snapshot.manifests(table.io)
        if manifest.content is not ManifestContent.DATA or manifest.sequence_number >= place.sequence_number
    ]
    return _ordered(table, _planner(table, _within(partition, wanted)).plan_files(manifests))


def find_places(table: Table, partition: int, offsets: Sequence[int]) -> dict[int, Place]:
    """Return the places of the rows; `offsets` are sorted."""
    snapshot, column = table.current_snapshot(), table.schema().find_field(OFFSET.name)
    if snapshot is None or not offsets:
        return {}
    planner = _planner(table, _within(partition, OffsetRange(offsets[0], offsets[-1] + 1)))
    found = {}
    for entries in planner.plan_manifest_entries(snapshot.manifests(table.io)):
        for entry in entries:
            low, high = bounds(entry.data_file, column)
            if entry.data_file.content is not DataFileContent.DATA or low is None or high is None:
                continue
            assert entry.snapshot_id is not None  # as read: they are inherited from the manifest
            assert entry.sequence_number is not None
            place = Place(entry.snapshot_id, entry.data_file.file_path, entry.sequence_number)
            found.update(dict.fromkeys((offset for offset in offsets if low <= offset <= high), place))
    return found


def plan_times(table: Table, partition: int, since_us: int) -> list[OffsetFile]:
    """Return the files that may hold a row appended at or after a time, sorted by their lowest offset."""
    since = pa.scalar(since_us, TIME).as_py().isoformat()
    return _planned(table, f"{PARTITION.name} = {partition} and {APPEND_TIME.name} >= '{since}'")


def plan_all(table: Table, partition: int) -> list[OffsetFile]:
    return _planned(table, f"{PARTITION.name} = {partition}")


def bounds(file: DataFile, column: NestedField) -> tuple[int | None, int | None]:
    """Return the minimum and maximum of a column in a file, if its statistics have them."""
    return _bound(file.lower_bounds, column), _bound(file.upper_bounds, column)


def _bound(values: dict[int, bytes] | None, column: NestedField) -> int | None:
    if not values or column.field_id not in values:
        return None
    assert isinstance(column.field_type, PrimitiveType)
    return int(from_bytes(column.field_type, values[column.field_id]))


def pieces(files: Iterable[OffsetFile], wanted: OffsetRange, window: int) -> Iterator[Piece]:
    """Split the range into pieces, in order. A piece without files is a gap."""
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


def _within(partition: int, wanted: OffsetRange) -> str:
    return f"{PARTITION.name} = {partition} and {OFFSET.name} >= {wanted.start} and {OFFSET.name} < {wanted.end}"


def _planner(table: Table, condition: str) -> ManifestGroupPlanner:
    return ManifestGroupPlanner(table.metadata, table.io, condition)


def _planned(table: Table, condition: str) -> list[OffsetFile]:
    return _ordered(table, table.scan(row_filter=condition).plan_files())


def _ordered(table: Table, tasks: Iterable[FileScanTask]) -> list[OffsetFile]:
    column = table.schema().find_field(OFFSET.name)
    found = []
    for task in tasks:
        low, high = bounds(task.file, column)
        found.append(OffsetFile(0 if low is None else low, BEYOND if high is None else high + 1, task))
    return sorted(found, key=lambda file: (file.low, file.high))

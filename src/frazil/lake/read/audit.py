"""Audit of a table's rows of a log, row by row: for a verification, or to list what is wrong.

    offsets    every offset exists once, and none is beyond what was committed
    content    the rows are those that were moved: their checksums match those that the commits recorded

Both scan the table in windows, so memory is bounded for any table size.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan
from pyiceberg.table import Table

from frazil.core.coverage import merged, total, without
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.lake.catalogs.error_text import reason
from frazil.lake.files.checksum import ColumnStream, RowsChecksum, from_text, joined, value
from frazil.lake.read.file_rows import FileRows
from frazil.lake.read.history import TableHistory
from frazil.lake.read.offset_files import BEYOND, OffsetFile, bounds, plan_all
from frazil.lake.tables.schema import PARTITION
from frazil.lake.tables.token import followed, logs, sum_key

WINDOW = 4_000_000

_UNREADABLE = (OSError, ValueError, KeyError, NotImplementedError, pa.ArrowException)
_CRC = re.compile(r"(\d+)-(\d+):([0-9a-f]{8})")

OnRows = Callable[[int], None]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem: `kind` is missing, double, beyond, foreign, changed, unproven or unreadable."""

    kind: str
    range: OffsetRange
    detail: str

    def as_dict(self) -> dict[str, object]:
        return {"kind": self.kind, "start": self.range.start, "end": self.range.end, "detail": self.detail}


@dataclass(frozen=True, slots=True)
class RecordedRange:
    """A range as its commit recorded it: its checksum, and the columns that it covers."""

    range: OffsetRange
    checksum: int
    columns: frozenset[str]


def audit_offsets(table: Table, partition: int, held: OffsetRange, on_rows: OnRows) -> list[Problem]:
    """Check that every offset that the table claims to hold exists once, and that none is beyond.

    An unreadable file is a problem of its offsets; the other files are still checked.
    """
    files = plan_all(table, partition)
    rows = FileRows(table, [], partition)
    unread: dict[str, Problem] = {}
    problems: list[Problem] = []
    for start in range(held.start, held.end, WINDOW):
        window = OffsetRange(start, min(start + WINDOW, held.end))
        counts = np.zeros(len(window), dtype=np.int64)
        for file in files:
            if file.path in unread or file.low >= window.end or file.high <= window.start:
                continue
            try:
                for offsets in _offsets(rows, [file], window):
                    counts += np.bincount(offsets - window.start, minlength=len(window))
                    on_rows(len(offsets))
            except _UNREADABLE as error:
                unread[file.path] = _unread(table, file, held, error)
        problems += [Problem("missing", gap, "not in the table") for gap in runs(counts == 0, window.start)]
        problems += [Problem("double", more, "in the table more than once") for more in runs(counts > 1, window.start)]
    known = [problem.range for problem in unread.values()]
    missing = [
        Problem("missing", part, each.detail)
        for each in problems
        if each.kind == "missing"
        for part in without(each.range, known)
    ]
    others = [each for each in problems if each.kind != "missing"]
    readable = [file for file in files if file.path not in unread]
    return [*merged_problems([*missing, *others]), *unread.values(), *_beyond(rows, readable, held.end)]


def _unread(table: Table, file: OffsetFile, held: OffsetRange, error: Exception) -> Problem:
    low = max(held.start, min(file.low, held.end - 1))
    why = reason(error, table.io.properties)
    return Problem("unreadable", OffsetRange(low, max(low + 1, min(file.high, held.end))), f"{file.path}: {why}")


def audit_partitions(table: Table) -> list[Problem]:
    """Find rows of partitions that no log has: no reader sees them, but another engine counts them."""
    known = set(logs(table).values())
    column, schema = table.schema().find_field(PARTITION.name), table.schema().select(OFFSET.name, PARTITION.name)
    scan = ArrowScan(table.metadata, table.io, schema, AlwaysTrue())
    found: dict[int, list[int]] = {}
    for task in table.scan().plan_files():
        least, greatest = bounds(task.file, column)
        if least is not None and least == greatest and least in known:
            continue
        for batch in scan.to_record_batches([task]):
            offsets, partitions = batch.column(OFFSET.name), batch.column(PARTITION.name)
            for partition in set(pc.unique(partitions).to_pylist()) - known:
                extent = pc.min_max(offsets.filter(pc.equal(partitions, partition)))
                found.setdefault(partition, []).extend((extent["min"].as_py(), extent["max"].as_py()))
    return [
        Problem("foreign", OffsetRange(min(ends), max(ends) + 1), f"rows of partition {partition}, which no log has")
        for partition, ends in sorted(found.items())
    ]


def lacking(table: Table, partition: int, held: OffsetRange) -> list[OffsetRange]:
    """Return the offsets that are not in the table. Files with as many rows as offsets are not read."""
    rows, found = FileRows(table, [], partition), []
    for file in plan_all(table, partition):
        if file.task.file.record_count == file.high - file.low and not file.task.delete_files:
            found.append(OffsetRange(file.low, file.high))
        else:
            for offsets in map(np.unique, _offsets(rows, [file], held)):
                runs = np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1)
                found += [OffsetRange(int(run[0]), int(run[-1]) + 1) for run in runs if len(run)]
    return without(held, found)


def _offsets(rows: FileRows, files: Sequence[OffsetFile], window: OffsetRange) -> Iterator[np.ndarray]:
    for file in files:
        if file.low < window.end and file.high > window.start:
            for batch in rows.batches(file, window):
                yield batch.column(0).to_numpy(zero_copy_only=False)


def _beyond(rows: FileRows, files: Sequence[OffsetFile], end: int) -> list[Problem]:
    """Find rows beyond the token, which no move has committed."""
    later = [file for file in files if file.high > end]
    found = [offsets for offsets in _offsets(rows, later, OffsetRange(end, BEYOND)) if len(offsets)]
    if not found:
        return []
    low, high = min(int(each.min()) for each in found), max(int(each.max()) for each in found)
    return [Problem("beyond", OffsetRange(low, high + 1), f"in the table, which was committed only up to {end}")]


def runs(wrong: np.ndarray, base: int) -> list[OffsetRange]:
    """Return the ranges of offsets, from `base` on, for which it is true."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wrong, [False])).astype(np.int8)))
    return [OffsetRange(base + int(low), base + int(high)) for low, high in edges.reshape(-1, 2)]


def merged_problems(problems: Sequence[Problem]) -> list[Problem]:
    """Merge problems that continue across a window's edge."""
    found: list[Problem] = []
    for problem in sorted(problems, key=lambda each: (each.kind, each.detail, each.range)):
        last = found[-1] if found else None
        continues = last is not None and (last.kind, last.detail) == (problem.kind, problem.detail)
        if continues and found[-1].range.end == problem.range.start:
            found[-1] = Problem(problem.kind, OffsetRange(found[-1].range.start, problem.range.end), problem.detail)
        else:
            found.append(problem)
    return sorted(found, key=lambda each: each.range)


# --- content


def recorded_ranges(table: Table, log_id: str) -> list[RecordedRange]:
    """Return the ranges recorded by the snapshots that are still kept."""
    schemas = table.schemas()
    keys = [f"frazil.{each}.crc" for each in (log_id, *followed(table, log_id))]
    found: dict[OffsetRange, RecordedRange] = {}
    for snapshot in table.metadata.snapshots:
        said = snapshot.summary.additional_properties if snapshot.summary else {}
        text = next((said[key] for key in keys if key in said), "")
        schema = schemas.get(snapshot.schema_id) if snapshot.schema_id is not None else None
        if schema is None:
            continue
        for start, end, crc in _CRC.findall(text):
            one = OffsetRange(int(start), int(end))
            found[one] = RecordedRange(one, int(crc, 16), frozenset(schema.column_names))
    return [found[one] for one in sorted(found)]


def recorded_sum(table: Table, log_id: str) -> dict[str, ColumnStream] | None:
    """Return the checksum of all rows that the table ever got of a log; None if none was recorded."""
    text = table.metadata.properties.get(sum_key(log_id))
    return from_text(text) or None if text else None


class ContentAudit:
    """Fed with the table's rows in order, it finds the recorded checksums that do not match.

    `proven` are the offsets whose rows match a recorded checksum.
    """

    def __init__(
        self,
        recorded: Sequence[RecordedRange],
        sums: dict[str, ColumnStream] | None,
        held: OffsetRange,
        gaps: Sequence[OffsetRange] = (),
    ) -> None:
        self._recorded = [one for one in recorded if one.range.start >= held.start and one.range.end <= held.end]
        self._total = sums
        self._held = held
        self._gaps = gaps
        self._at = held.start
        self._open: list[tuple[RecordedRange, RowsChecksum]] = []
        self._sums: dict[int, RowsChecksum] = {}
        self._columns: dict[int, list[str]] = {}
        self._first = None if sums is None else {name[:-1]: one.start for name, one in sums.items() if name[-1] == "?"}
        self.checked = 0
        self.proven: list[OffsetRange] = []
        self.problems: list[Problem] = []

    def add(self, rows: pa.RecordBatch) -> None:
        """Add rows that continue the previous ones; after a jump, ranges that it cut are not checked."""
        first = rows.column(0)[0].as_py()
        if first != self._at:
            self._open = []
            if not self._is_accepted(first):
                self._total = None
        self._at = first + rows.num_rows
        self._add_to_sums(rows, first)
        if self._first is not None:
            for name in rows.schema.names:
                self._check_older(rows, first, 0, self._first.get(name, BEYOND), name)
        while self._recorded and self._recorded[0].range.start < self._at:
            one = self._recorded.pop(0)
            if one.range.start >= first:
                self._open.append((one, RowsChecksum(one.range.start)))
        for one, checksum in self._open:
            _feed(checksum, rows, first, one.range, one.columns)
            for name in rows.schema.names if self._first is None else ():
                if name not in one.columns:
                    self._check_older(rows, first, one.range.start, one.range.end, name)
        for one, checksum in [each for each in self._open if each[0].range.end <= self._at]:
            self.checked += 1
            if checksum.value() == one.checksum:
                self.proven.append(one.range)
            else:
                self.problems.append(Problem("changed", one.range, "rows are not those that were moved: checksum"))
        self._open = [each for each in self._open if each[0].range.end > self._at]

    def end(self) -> list[Problem]:
        """Finish: the checksum of all rows must match."""
        whole = self._at == self._held.end or self._is_accepted(self._held.end)
        if self._total and self._sums and whole and not self.problems:
            found: dict[str, ColumnStream] = {}
            for sums in self._sums.values():
                found = joined(found, sums.streams())
            if value(found) == value(self._total):
                self.checked += 1
                self.proven.append(OffsetRange(min(self._sums), self._held.end))
            else:
                self.problems.append(Problem("changed", self._held, "the rows don't have the checksum of all moves"))
        return self.problems

    def _is_accepted(self, until: int) -> bool:
        """Whether all missing offsets up to `until` are accepted as missing."""
        return self._at < until and not total(without(OffsetRange(self._at, until), merged(self._gaps)))

    def _check_older(self, rows: pa.RecordBatch, first: int, start: int, end: int, name: str) -> None:
        """Rows moved before a column was added are not in its checksums: they must have no value there."""
        low, high = max(0, start - first), min(rows.num_rows, end - first)
        if low >= high:
            return
        column = rows.column(name).slice(low, high - low)
        if column.null_count < len(column):
            wrong = first + low + np.flatnonzero(np.asarray(pc.is_valid(column)))
            why = f"rows have values in the column `{name}`, which came after they were moved"
            self.problems.append(Problem("changed", OffsetRange(int(wrong[0]), int(wrong[-1]) + 1), why))

    def _add_to_sums(self, rows: pa.RecordBatch, first: int) -> None:
        """Add each column from its first offset on."""
        if self._total is None:
            return
        if not self._columns:
            starts = {name: self._total[f"{name}?"].start for name in rows.schema.names if f"{name}?" in self._total}
            for name, start in starts.items():
                self._columns.setdefault(start, []).append(name)
                self._sums.setdefault(start, RowsChecksum(start))
        for start, sums in self._sums.items():
            wanted = OffsetRange(start, BEYOND)
            _feed(sums, rows, first, wanted, frozenset(self._columns[start]))


def _feed(
    checksum: RowsChecksum, rows: pa.RecordBatch, first: int, wanted: OffsetRange, columns: frozenset[str]
) -> None:
    low = max(0, wanted.start - first)
    high = min(rows.num_rows, wanted.end - first)
    if low < high:
        checksum.add(rows.slice(low, high - low).select([name for name in rows.schema.names if name in columns]))


def whole_parts(held: OffsetRange, problems: Sequence[Problem]) -> list[OffsetRange]:
    """Return a range without the parts that cannot be read in order."""
    edges = sorted((max(held.start, each.range.start), min(held.end, each.range.end)) for each in problems)
    bounds = [(held.start, held.start), *edges, (held.end, held.end)]
    parts = []
    reached = held.start
    for (_, low), (high, _) in itertools.pairwise(bounds):
        reached = max(reached, low)
        if reached < high:
            parts.append(OffsetRange(reached, high))
    return parts


def table_rows_of(history: TableHistory, parts: Sequence[OffsetRange], stored: pa.Schema) -> Iterator[pa.RecordBatch]:
    for part in parts:
        reader = history.read(part.start, part.end, stored)
        try:
            yield from reader
        finally:
            reader.close()

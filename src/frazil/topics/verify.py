"""Proof that every acknowledged offset is in exactly one place that readers will use, or the list of what is wrong.

The table must hold every offset up to its token once, with the content that the commits recorded; the log must hold
the rest. Where both hold rows, these must be equal. Everything is read: a proof from statistics would believe what it
is to prove.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from frazil.core.errors import CorruptLog, FrazilError, TableRefused
from frazil.core.offsets import OffsetRange
from frazil.core.rows import joined
from frazil.lake.audit import (
    ContentAudit,
    OnRows,
    Problem,
    audit_offsets,
    recorded_ranges,
    recorded_sum,
    table_rows_of,
    whole_parts,
)
from frazil.lake.checksum import RowsChecksum
from frazil.lake.history import TableHistory
from frazil.lake.token import gaps
from frazil.log.info import LogInfo

ATTEMPTS_MAX = 3

ReadLog = Callable[[LogInfo, OffsetRange], Iterator[pa.RecordBatch]]
AskLog = Callable[[], LogInfo]


@dataclass(slots=True)
class Proof:
    """What was found of one topic. `checksums` counts those that were recorded, and were found to be right."""

    topic: str
    table: str
    end: int = 0
    in_table: int = 0
    in_log: int = 0
    checksums: int = 0
    removed: int = 0
    gaps: list[OffsetRange] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def proven(self) -> bool:
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "table": self.table,
            "proven": self.proven,
            "end": self.end,
            "in_table": self.in_table,
            "in_log": self.in_log,
            "checksums": self.checksums,
            "removed_by_retention": self.removed,
            "accepted_gaps": [[gap.start, gap.end] for gap in self.gaps],
            "problems": [problem.as_dict() for problem in self.problems],
        }


def verify(ask: AskLog, read: ReadLog, history: TableHistory | None, on_rows: OnRows) -> Proof:
    """Walk one topic. Rows may move from log to table while it is walked: then what was missed is walked again."""
    for attempt in range(ATTEMPTS_MAX):
        try:
            return _Walk(ask, read, history, on_rows).walk()
        except _RemovedMeanwhile as removed:
            if attempt == ATTEMPTS_MAX - 1:
                raise removed.error from None
    raise AssertionError("the last attempt returns or raises")


class _RemovedMeanwhile(Exception):
    def __init__(self, error: Exception) -> None:
        super().__init__(str(error))
        self.error = error


class _Walk:
    """The log is asked before the table is looked at and again after it: so a row that moves meanwhile is in neither
    of the two only if it is lost."""

    def __init__(self, ask: AskLog, read: ReadLog, history: TableHistory | None, on_rows: OnRows) -> None:
        self._ask = ask
        self._read = read
        self._history = history
        self._on_rows = on_rows
        self._before = ask()
        self._stored = pa.ipc.read_schema(pa.py_buffer(self._before.stored_schema))
        self._proof = Proof(str(self._before.topic), "" if history is None else str(history.name))

    def walk(self) -> Proof:
        proof = self._proof
        table_end = self._walk_table()
        after = self._ask()
        proof.end = after.durable_end
        if table_end > after.durable_end:
            lost = OffsetRange(after.durable_end, table_end)
            proof.problems.append(Problem("lost", lost, f"the table has them, but the log ends at {lost.start}"))
        start = self._log_starts(table_end)
        if start < self._before.durable_end:
            self._walk_log(OffsetRange(start, self._before.durable_end))
        return proof

    # --- the table

    def _walk_table(self) -> int:
        """Returns how far the table has the log."""
        try:
            found = None if self._history is None else self._history.look()
        except TableRefused as error:
            rolled = OffsetRange(error.fields.get("has", 0), max(1, error.fields.get("had", 1)))
            self._proof.problems.append(Problem("rolled back", rolled, error.message))
            return rolled.start
        if found is None or self._history is None:
            return 0
        table, end = found
        held = OffsetRange(0, end)
        known = gaps(table, self._before.log_id)
        problems = audit_offsets(table, self._history.partition, held, self._on_rows)
        missing = [each for each in problems if not (each.kind == "missing" and _within(each.range, known))]
        self._proof.gaps = known
        self._proof.problems += missing
        self._proof.in_table = end - sum(len(each.range) for each in problems if each.kind == "missing")
        recorded = recorded_ranges(table, self._before.log_id)
        content = ContentAudit(recorded, recorded_sum(table, self._before.log_id), held)
        try:
            for rows in table_rows_of(self._history, whole_parts(held, problems), self._stored):
                self._on_rows(rows.num_rows)
                content.add(rows)
                self._compare_with_log(rows)
        except TableRefused as error:
            at = int(error.fields.get("offset", 0))
            self._proof.problems.append(Problem("unreadable", OffsetRange(at, at + 1), error.message))
        self._proof.problems += content.end()
        self._proof.checksums = content.checked
        return end

    def _compare_with_log(self, rows: pa.RecordBatch) -> None:
        """Where the log still has what the table has, they must be equal."""
        first = rows.column(0)[0].as_py()
        both = OffsetRange(first, first + rows.num_rows)
        start, end = max(both.start, self._before.first_offset), min(both.end, self._before.durable_end)
        if start >= end:
            return
        mine = rows.slice(start - first, end - start)
        try:
            theirs = joined(list(self._read(self._before, OffsetRange(start, end))))
        except (CorruptLog, OSError):
            return  # being removed, or damaged: the walk over the log is for that
        if _crc(mine) != _crc(theirs):
            changed = _difference(mine, theirs, start)
            self._proof.problems.append(Problem("changed", changed, "the table has other content than the log"))

    # --- the log

    def _log_starts(self, table_end: int) -> int:
        """Where the log takes over from the table, which must be where the table ends."""
        first = self._before.first_offset
        if table_end == 0:
            self._proof.removed = first
            return first
        if first > table_end and not _within(OffsetRange(table_end, first), self._proof.gaps):
            gap = OffsetRange(table_end, first)
            self._proof.problems.append(Problem("missing", gap, "neither in the table nor in the log"))
        return max(first, table_end)

    def _walk_log(self, rest: OffsetRange) -> None:
        at = rest.start
        try:
            for rows in self._read(self._before, rest):
                assert rows.column(0)[0].as_py() == at
                at += rows.num_rows
                self._on_rows(rows.num_rows)
        except (CorruptLog, OSError) as error:
            if self._ask().first_offset > at:
                raise _RemovedMeanwhile(error) from error
            why = error.message if isinstance(error, FrazilError) else str(error)
            self._proof.problems.append(Problem("unreadable", OffsetRange(at, rest.end), why))
        self._proof.in_log = at - rest.start


def _within(wanted: OffsetRange, known: Sequence[OffsetRange]) -> bool:
    return any(one.start <= wanted.start and wanted.end <= one.end for one in known)


def _crc(rows: pa.RecordBatch) -> int:
    checksum = RowsChecksum()
    checksum.add(rows)
    return checksum.value()


def _difference(mine: pa.RecordBatch, theirs: pa.RecordBatch, start: int) -> OffsetRange:
    """From the first row that differs to the last."""
    count = mine.num_rows
    sizes = range(1, count + 1)
    first = bisect.bisect_left(sizes, True, key=lambda size: _crc(mine.slice(0, size)) != _crc(theirs.slice(0, size)))
    tail = bisect.bisect_left(
        sizes, True, key=lambda size: _crc(mine.slice(count - size)) != _crc(theirs.slice(count - size))
    )
    return OffsetRange(start + first, start + count - tail)

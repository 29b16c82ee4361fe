"""Prove that every acknowledged offset is in exactly one place that readers use, or list what is wrong.

The table must hold every offset up to its token once, with the content that the commits recorded; the log must hold the
rest, in its files or its objects. Rows in two of them must be equal. Everything is read, every object too: statistics
cannot prove themselves.

The walk records every range that it has read or whose removal was recorded. Finally each offset from 0 to the durable
end must be in one of them: any range that a step skipped is then a problem.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from frazil.core.coverage import below, merged, total, without
from frazil.core.errors import CorruptLog, FrazilError, TableRefused, TableRolledBack
from frazil.core.offsets import OffsetRange
from frazil.core.rows import joined
from frazil.lake.files.checksum import RowsChecksum
from frazil.lake.read.audit import (
    ContentAudit,
    OnRows,
    Problem,
    audit_offsets,
    audit_partitions,
    recorded_ranges,
    recorded_sum,
    table_rows_of,
    whole_parts,
)
from frazil.lake.read.derived_tables import DerivedTables, is_derived, snapshot_of
from frazil.lake.read.history import TableHistory
from frazil.lake.tables.token import gaps
from frazil.log.folder.former import FormerLog
from frazil.log.info import LogInfo
from frazil.node.verify.telemetry import TelemetryCheck
from frazil.telemetry.schemas import tables_of
from frazil.telemetry.signals import signal_of

ATTEMPTS_MAX = 3

ReadLog = Callable[[LogInfo, OffsetRange], Iterator[pa.RecordBatch]]
AskLog = Callable[[], LogInfo]


@dataclass(slots=True)
class TopicProof:
    """The result for one topic. `checksums` counts those that were recorded and checked.

    `checked` counts the rows of the table whose content was proven, by a checksum or by the log: it is a proof only if
    these are all. `in_log` counts rows that only the log has, in files or objects; `in_objects` all rows that were read
    from objects. `dropped` was removed by a recorded retention. `transformed` are offsets of which only a statement's
    result is left: their content cannot be proven. `renumbered` are former logs, whose rows became rows of this one.
    """

    topic: str
    table: str
    end: int = 0
    in_table: int = 0
    in_log: int = 0
    in_objects: int = 0
    transformed: int = 0
    checksums: int = 0
    checked: int = 0
    dropped: list[OffsetRange] = field(default_factory=list)
    gaps: list[OffsetRange] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    renumbered: tuple[FormerLog, ...] = ()
    tables: dict[str, int] = field(default_factory=dict)
    """Of a topic of telemetry: the rows of each of its tables."""
    redecoded: int = 0
    """How many requests were decoded again, and compared with the tables."""

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
            "in_objects": self.in_objects,
            "transformed": self.transformed,
            "checksums": self.checksums,
            "checked": self.checked,
            "removed_by_retention": total(self.dropped),
            "dropped": [[one.start, one.end] for one in self.dropped],
            "accepted_gaps": [[gap.start, gap.end] for gap in self.gaps],
            "renumbered": [one.as_content() for one in self.renumbered],
            "tables": self.tables,
            "redecoded": self.redecoded,
            "problems": [problem.as_dict() for problem in self.problems],
        }


def unreadable(topic: str, end: int, why: str) -> TopicProof:
    """The result for a topic that cannot be read: nothing of it is proven."""
    whole = OffsetRange(0, max(1, end))
    return TopicProof(topic, "", end, problems=[Problem("unreadable", whole, why)])


def verify(
    ask: AskLog,
    read: ReadLog,
    history: TableHistory | None,
    on_rows: OnRows,
    read_objects: ReadLog | None = None,
) -> TopicProof:
    """Walk one topic. Rows may move from log to table meanwhile: then what was missed is walked again.

    `read_objects` reads a range from objects alone; None if the object tier is off.
    """
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return _Walk(ask, read, history, on_rows, read_objects).walk()
        except _RemovedMeanwhile:
            continue
    walk = _Walk(ask, read, history, on_rows, read_objects)
    try:
        return walk.walk()
    except _RemovedMeanwhile as removed:
        why = f"its rows were removed faster than they could be read, {ATTEMPTS_MAX} times ({removed}); verify it again"
        return unreadable(str(walk.before.topic), walk.before.durable_end, why)


class _RemovedMeanwhile(Exception):
    pass


class _Walk:
    """The log is asked before the table is loaded and again afterwards: so a row that moves meanwhile is in neither of
    the two only if it is lost."""

    def __init__(
        self,
        ask: AskLog,
        read: ReadLog,
        history: TableHistory | None,
        on_rows: OnRows,
        read_objects: ReadLog | None,
    ) -> None:
        self._ask = ask
        self._read = read
        self._read_objects = read_objects
        self._history = history
        self._on_rows = on_rows
        self.before = ask()
        self._stored = pa.ipc.read_schema(pa.py_buffer(self.before.stored_schema))
        self._proof = TopicProof(str(self.before.topic), "" if history is None else str(history.name))
        self._proof.renumbered = self.before.former
        self._covered: list[OffsetRange] = []
        self._compared: list[OffsetRange] = []
        self._not_read: str | None = None

    def walk(self) -> TopicProof:
        proof = self._proof
        table_end = self._walk_table()
        after = self._ask()
        proof.end = max(self.before.durable_end, min(table_end, after.durable_end))
        if table_end > after.durable_end:
            lost = OffsetRange(after.durable_end, table_end)
            why = f"the table has them, but the log ends at {lost.start}; the log is behind its table"
            proof.problems.append(Problem("lost", lost, why))
        for rest in self._only_in_log(table_end):
            self._walk_log(rest)
        self._walk_objects()
        self._walk_telemetry()
        self._account()
        return proof

    def _only_in_log(self, table_end: int) -> list[OffsetRange]:
        """Return what readers read from the log: offsets after the table, and accepted gaps of the table."""
        first, end = self.before.held_from, self.before.durable_end
        if first >= end:
            return []
        in_table = without(OffsetRange(0, table_end), self._proof.gaps) if table_end else []
        return without(OffsetRange(first, end), in_table)

    def _account(self) -> None:
        """Every offset not covered so far must be in the log's record of removals, or it is a problem."""
        proof, first = self._proof, self.before.held_from
        known = [*self._covered, *proof.gaps, *(problem.range for problem in proof.problems)]
        statement_end = self._statement_end()
        if statement_end and first:
            result = OffsetRange(0, min(statement_end, first))
            proof.transformed = total(without(result, known))
            known.append(result)
        recorded = below(merged(self.before.dropped), first)
        proof.dropped = [part for one in recorded for part in without(one, known)]
        if proof.end:
            for gap in without(OffsetRange(0, proof.end), [*known, *proof.dropped]):
                proof.problems.append(self._unaccounted(gap))

    def _statement_end(self) -> int:
        if self._history is None or self._not_read is not None:
            return 0
        return self._history.statement_end()

    def _unaccounted(self, gap: OffsetRange) -> Problem:
        if self._not_read is not None:
            return Problem("unproven", gap, f"the table was not read there: {self._not_read}")
        former = self.before.former[-1] if self.before.former else None
        if former is not None and gap.start < former.table_end and not self._proof.in_table:
            why = (
                f"the table has them, if at all, as rows of the former log {former.log_id}, and is not handed over yet"
            )
            return Problem("missing", gap, f"{why}; run the mover, or: frazil log renumber {self._proof.topic}")
        accept = f"if they are lost, accept it with: frazil pipeline accept {self._proof.topic}"
        if self._proof.in_table:
            return Problem("missing", gap, f"neither in the table nor in the log; {accept}")
        why = (
            "no longer in the log, in no table, and their removal was not recorded: the table was dropped, or they "
            "were removed before removals were recorded"
        )
        return Problem("missing", gap, f"{why}; {accept}")

    # --- the table

    def _walk_table(self) -> int:
        """Returns the table's end of the log."""
        try:
            found = None if self._history is None else self._history.look()
        except TableRefused as error:
            self._not_read = error.message
            if isinstance(error, TableRolledBack):
                rolled = OffsetRange(error.fields["has"], max(error.fields["has"] + 1, error.fields["had"]))
                self._proof.problems.append(Problem("rolled back", rolled, error.message))
            else:
                whole = OffsetRange(0, max(1, self.before.durable_end))
                self._proof.problems.append(Problem("refused", whole, error.message))
            return 0
        if found is None or self._history is None:
            return 0
        table, end = found
        held = OffsetRange(0, end)
        known = gaps(table, self.before.log_id)
        try:
            problems = audit_offsets(table, self._history.partition, held, self._on_rows)
            self._proof.problems += audit_partitions(table)
        except (OSError, ValueError, KeyError, pa.ArrowException) as error:
            self._refuse_if_changed(table.metadata.current_snapshot_id)
            raise self._history.problem(0, error) from error
        if any(each.kind == "unreadable" for each in problems):
            self._refuse_if_changed(table.metadata.current_snapshot_id)
        self._proof.gaps = known
        self._proof.problems += [each for each in problems if each.kind != "missing"]
        self._proof.problems += [
            Problem("missing", part, each.detail)
            for each in problems
            if each.kind == "missing"
            for part in without(each.range, known)
        ]
        self._proof.in_table = end - sum(len(each.range) for each in problems if each.kind in ("missing", "unreadable"))
        recorded = recorded_ranges(table, self.before.log_id)
        content = ContentAudit(recorded, recorded_sum(table, self.before.log_id), held, known)
        self._walk_content(content, whole_parts(held, problems))
        return end

    def _refuse_if_changed(self, snapshot_id: int | None) -> None:
        """A file may be gone because the table was compacted meanwhile: then everything is checked again."""
        now = None if self._history is None else self._history.look()
        if now is None or now[0].metadata.current_snapshot_id != snapshot_id:
            raise _RemovedMeanwhile("the table was changed")

    def _walk_content(self, content: ContentAudit, parts: Sequence[OffsetRange]) -> None:
        proof = self._proof
        assert self._history is not None
        try:
            for rows in table_rows_of(self._history, parts, self._stored):
                self._on_rows(rows.num_rows)
                content.add(rows)
                self._compare_with_log(rows)
                self._cover(rows)
        except TableRefused as error:
            at = int(error.fields.get("offset", 0))
            self._not_read = error.message
            proof.problems.append(Problem("unreadable", OffsetRange(at, at + 1), error.message))
        proof.problems += content.end()
        proof.checksums = content.checked
        unproven = [part for one in self._covered for part in without(one, [*self._compared, *content.proven])]
        proof.checked = total(self._covered) - total(unproven)
        if not proof.problems:  # otherwise it is no proof anyway, and rows next to a problem cannot be checked
            why = "no checksum of these rows is recorded any more, and the log no longer has them"
            proof.problems += [Problem("unproven", part, why) for part in unproven]

    def _cover(self, rows: pa.RecordBatch) -> None:
        first = rows.column(0)[0].as_py()
        last = [] if not self._covered else [self._covered.pop()]
        self._covered += merged([*last, OffsetRange(first, first + rows.num_rows)])

    def _compare_with_log(self, rows: pa.RecordBatch) -> None:
        """Rows in both log and table must be equal: readers use the log's."""
        first = rows.column(0)[0].as_py()
        both = OffsetRange(first, first + rows.num_rows)
        start, end = max(both.start, self.before.held_from), min(both.end, self.before.durable_end)
        if start >= end:
            return
        mine = rows.slice(start - first, end - start)
        try:
            theirs = joined(list(self._read(self.before, OffsetRange(start, end))))
        except (CorruptLog, OSError) as error:
            if self._ask().held_from < end:
                self._cannot_read(OffsetRange(start, end), error)
            return  # otherwise it was removed meanwhile, and the table has it
        if _crc(mine) != _crc(theirs):
            changed = _difference(mine, theirs, start)
            self._proof.problems.append(Problem("changed", changed, "the table has other content than the log"))
        else:
            self._compared = merged([*self._compared, OffsetRange(start, end)])

    def _walk_telemetry(self) -> None:
        """Check the tables of a topic of telemetry, which hold rows of its requests instead of the requests."""
        signal = signal_of(self.before.topic, self._stored)
        if signal is None or self._history is None or self._not_read is not None:
            return
        tables = self._history.derived([name for name in tables_of(signal) if name != self._history.name.table])
        if tables.own is None or not is_derived(tables.own):
            return
        first, end = self.before.held_from, self._ask().durable_end
        in_log = OffsetRange(first, end) if first < end else None
        check = TelemetryCheck(signal, tables, lambda part: self._read(self._ask(), part), self._on_rows)
        try:
            found = check.run(in_log)
        except (CorruptLog, OSError, ValueError, KeyError, pa.ArrowException) as error:
            if self._ask().held_from > first or self._is_changed(tables):
                raise _RemovedMeanwhile(str(error)) from error
            whole = OffsetRange(0, max(1, self.before.durable_end))
            self._proof.problems.append(Problem("unreadable", whole, f"the tables cannot be checked: {error}"))
            return
        self._proof.tables, self._proof.redecoded = found.rows, found.redecoded
        self._proof.problems += found.problems

    def _is_changed(self, tables: DerivedTables) -> bool:
        """Whether a table was changed since it was loaded: its files may be gone after a compaction."""
        assert self._history is not None
        now = self._history.derived(list(tables.others))
        return [snapshot_of(one) for one in (tables.own, *tables.others.values())] != [
            snapshot_of(one) for one in (now.own, *now.others.values())
        ]

    # --- the log

    def _walk_log(self, rest: OffsetRange) -> None:
        at = rest.start
        try:
            for rows in self._read(self.before, rest):
                assert rows.column(0)[0].as_py() == at
                at += rows.num_rows
                self._on_rows(rows.num_rows)
        except (CorruptLog, OSError) as error:
            if self._ask().held_from > at:
                raise _RemovedMeanwhile(_why(error)) from error
            self._cannot_read(OffsetRange(at, rest.end), error)
        self._proof.in_log += at - rest.start
        if at > rest.start:
            self._covered.append(OffsetRange(rest.start, at))

    # --- the objects

    def _walk_objects(self) -> None:
        """Read every object completely. Where the files have its rows too, they must be equal."""
        if self.before.objects_problem is not None:
            whole = OffsetRange(0, max(1, self.before.durable_end))
            self._proof.problems.append(Problem("unreadable", whole, f"objects: {self.before.objects_problem}"))
        for one in self.before.objects if self._read_objects is not None else ():
            if one.range is not None:
                self._walk_object(one.range)

    def _walk_object(self, held: OffsetRange) -> None:
        assert self._read_objects is not None
        try:
            for rows in self._read_objects(self.before, held):
                self._on_rows(rows.num_rows)
                self._compare_with_files(rows)
                self._proof.in_objects += rows.num_rows
        except (CorruptLog, OSError) as error:
            now = self._ask()
            if now.objects and now.objects[0].first > held.start:
                return  # retention has removed it meanwhile
            why, problems = _why(error), self._proof.problems
            if not any(why in problem.detail for problem in problems):  # otherwise the walk of the log has met it
                problems.append(Problem("unreadable", held, f"the objects cannot be read: {why}"))

    def _compare_with_files(self, rows: pa.RecordBatch) -> None:
        first = rows.column(0)[0].as_py()
        start, end = max(first, self.before.first_offset), min(first + rows.num_rows, self.before.durable_end)
        if start >= end:
            return
        mine = rows.slice(start - first, end - start)
        try:
            theirs = joined(list(self._read(self.before, OffsetRange(start, end))))
        except (CorruptLog, OSError):
            return  # the walk of the log reports it, or the files were removed meanwhile
        if _crc(mine) != _crc(theirs):
            changed = _difference(mine, theirs, start)
            self._proof.problems.append(Problem("changed", changed, "the objects have other content than the log"))

    def _cannot_read(self, wanted: OffsetRange, error: CorruptLog | OSError) -> None:
        """Record an unreadable part of the log; consecutive parts are one problem."""
        why, problems = _why(error), self._proof.problems
        last = problems[-1] if problems else None
        if last is not None and last.kind == "unreadable" and last.range.end == wanted.start:
            problems[-1] = Problem("unreadable", OffsetRange(last.range.start, wanted.end), last.detail)
        else:
            problems.append(Problem("unreadable", wanted, f"the log cannot be read: {why}"))


def _why(error: CorruptLog | OSError) -> str:
    return error.message if isinstance(error, FrazilError) else str(error)


def _crc(rows: pa.RecordBatch) -> int:
    checksum = RowsChecksum()
    checksum.add(rows)
    return checksum.value()


def _difference(mine: pa.RecordBatch, theirs: pa.RecordBatch, start: int) -> OffsetRange:
    """Return the range from the first row that differs to the last."""
    count = mine.num_rows
    sizes = range(1, count + 1)
    first = bisect.bisect_left(sizes, True, key=lambda size: _crc(mine.slice(0, size)) != _crc(theirs.slice(0, size)))
    tail = bisect.bisect_left(
        sizes, True, key=lambda size: _crc(mine.slice(count - size)) != _crc(theirs.slice(count - size))
    )
    return OffsetRange(start + first, start + count - tail)

"""Proves the tables of a topic of telemetry.

Requests that are still in the log are decoded again: each table must have their rows, each once and unchanged, and
nothing else. Of requests that are no longer in the log the tables must agree with themselves: each row's index is there
once, `metrics` says how many points there are, and each table has as many rows as its commits have added.

Offsets are checked in windows, so memory does not grow with log or tables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import duckdb
import numpy as np
import pyarrow as pa

from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME, OFFSET
from frazil.lake.read.audit import OnRows, Problem, merged_problems, runs
from frazil.lake.read.derived_tables import DerivedTable, DerivedTables
from frazil.lake.read.row_tally import RowTally, added, open_engine
from frazil.lake.tables.written import Writing
from frazil.node.verify.written_columns import WrittenColumns, grouped, lifted_of
from frazil.telemetry.decode import Decoded, decode_parts
from frazil.telemetry.schemas import errors_table, tables_of
from frazil.telemetry.signals import Signal

WINDOW = 200_000
ERROR_COLUMNS = (OFFSET.name, "_topic_partition", "_append_time", "raw")
"""Of an error. Its reason is in the words of a library, which may change."""

ReadRange = Callable[[OffsetRange], Iterator[pa.RecordBatch]]


@dataclass(slots=True)
class TelemetryAudit:
    """The result: the rows of each table, how many requests were decoded again, and what is wrong."""

    rows: dict[str, int] = field(default_factory=dict)
    redecoded: int = 0
    problems: list[Problem] = field(default_factory=list)


class TelemetryCheck:
    def __init__(self, signal: Signal, tables: DerivedTables, read: ReadRange, on_rows: OnRows) -> None:
        """`read` returns requests that are in the log."""
        assert tables.own is not None
        self._signal = signal
        self._own = tables.own
        self._tables = {self._own.name: self._own, **tables.others}
        self._recorded = tables.recorded
        self._read = read
        self._on_rows = on_rows
        self._known = tables_of(signal)
        self._errors = errors_table(signal)
        self._columns = {
            name: WrittenColumns(columns, self._tables.get(name))
            for name, columns in self._known.items()
            if name != self._errors
        }
        self._found = TelemetryAudit(dict.fromkeys(self._tables, 0))

    def run(self, in_log: OffsetRange | None) -> TelemetryAudit:
        """Check all offsets, given the range that the log has of them."""
        found = self._found
        self._check_recorded()
        with open_engine() as engine:
            reach = max(table.reach for table in self._tables.values())
            for start in range(0, reach, WINDOW):
                self._check_window(engine, OffsetRange(start, min(start + WINDOW, reach)), in_log)
        for name, table in self._tables.items():
            if table.counted is not None and table.counted != found.rows[name]:
                what = f"{name} has {found.rows[name]} rows of the log, and its commits added {table.counted}"
                found.problems.append(Problem("missing", OffsetRange(0, max(1, table.token)), what))
        found.problems = merged_problems(found.problems)
        return found

    def _check_recorded(self) -> None:
        for name, end in self._recorded.items():
            table = self._tables.get(name)
            has = 0 if table is None else table.token
            if has < end:
                why = f"{name} was dropped, replaced or rolled back"
                self._found.problems.append(Problem("missing", OffsetRange(has, end), why))
        for name, columns in self._columns.items():
            for column, start in columns.dropped.items():
                why = f"the column {column} was dropped from {name}, and its values with it"
                self._found.problems.append(
                    Problem("changed", OffsetRange(start, max(start + 1, self._end(name))), why)
                )

    def _end(self, name: str) -> int:
        """Up to where a table has all its rows."""
        table = self._tables.get(name)
        return max(self._own.token, 0 if table is None else table.token)

    def _check_window(self, engine: duckdb.DuckDBPyConnection, window: OffsetRange, in_log: OffsetRange | None) -> None:
        errors = self._errors_tally(engine, window)
        there = {} if self._errors not in self._tables else {self._errors: errors}
        for name, table in self._tables.items():
            if name != self._errors:
                there[name] = self._tally(engine, table, window, errors)
        for name, tally in there.items():
            self._found.rows[name] += int(tally.count.sum())
            beyond = (tally.count > 0) & (np.arange(window.start, window.end) >= self._end(name))
            self._report(
                "beyond", beyond, window, f"{name} has rows of it, and was committed only to {self._end(name)}"
            )
        self._check_indices(there, window)
        start, end = max(window.start, in_log.start if in_log else window.end), min(window.end, self._reach(in_log))
        if start < end:
            self._compare(engine, there, OffsetRange(start, end), window)

    def _reach(self, in_log: OffsetRange | None) -> int:
        return 0 if in_log is None else min(in_log.end, max(map(self._end, self._tables)))

    def _errors_tally(self, engine: duckdb.DuckDBPyConnection, window: OffsetRange) -> RowTally:
        tally, table = self._empty(self._errors, window), self._tables.get(self._errors)
        if table is not None:
            for batch in table.rows([*ERROR_COLUMNS[1:], "_index"], window):
                tally.add(engine, batch)
                self._on_rows(batch.num_rows)
        return tally

    def _tally(
        self, engine: duckdb.DuckDBPyConnection, table: DerivedTable, window: OffsetRange, errors: RowTally
    ) -> RowTally:
        tally, columns = self._empty(table.name, window), self._columns[table.name]
        for batch in table.rows([name for name in columns.names if name != OFFSET.name], window):
            for part in columns.comparable(batch, lambda offsets: errors.count[offsets - window.start] > 0):
                tally.add(engine, part)
            self._on_rows(batch.num_rows)
        return tally

    def _empty(self, name: str, window: OffsetRange) -> RowTally:
        """Errors are compared in the same columns always, others in those that were written."""
        hashed = ERROR_COLUMNS if name == self._errors else self._columns[name].names
        return RowTally(window, hashed, "data_points" if name == "metrics" else None)

    def _check_indices(self, there: dict[str, RowTally], window: OffsetRange) -> None:
        """Whatever the log has: each row's index is there once."""
        committed = np.arange(window.start, window.end) < self._own.token
        own = there[self._own.name]
        twice = f"{self._own.name} has no row, or several, of an index"
        self._report("changed", own.odd_indices() & committed, window, twice)
        if self._signal is Signal.METRICS:
            points = added(
                {name: one for name, one in there.items() if name.startswith("metrics_") and name != self._errors},
                window,
            )
            differs = (points.count != own.total) | points.odd_indices()
            why = "the tables of points have other points than `metrics` says"
            self._report("changed", differs & committed, window, why)

    def _compare(
        self,
        engine: duckdb.DuckDBPyConnection,
        there: dict[str, RowTally],
        part: OffsetRange,
        window: OffsetRange,
    ) -> None:
        """Decode the requests again and compare what becomes of them with the tables."""
        errors = there.get(self._errors) or self._empty(self._errors, window)

        def known(batch: pa.RecordBatch) -> np.ndarray:
            """Which requests are errors in the table, whatever today's decoder makes of them."""
            found: np.ndarray = errors.count[batch.column(OFFSET.name).to_numpy() - window.start] > 0
            return found

        wanted = {name: self._empty(name, window) for name in self._known}
        for rows in self._read(part):
            self._found.redecoded += rows.num_rows
            self._on_rows(rows.num_rows)
            for decoded, writings in self._decoded(rows, known(rows)):
                for name, made in decoded.rows.items():
                    if name in writings:
                        wanted[name].add(engine, self._columns[name].expected(made, writings[name]))
                wanted[self._errors].add(engine, decoded.errors.filter(pa.array(~known(decoded.errors))))
            wanted[self._errors].add(engine, self._as_errors(rows.filter(pa.array(known(rows)))))
        offsets = np.arange(window.start, window.end)
        inside = (offsets >= part.start) & (offsets < part.end)
        for name, expected in wanted.items():
            has = there.get(name) or self._empty(name, window)
            checked = inside & (offsets < self._end(name))
            if name != self._errors:  # rows of an error may be there, if it was replayed
                checked &= (errors.count == 0) | (has.count > 0)
            fewer, more = has.count < expected.count, has.count > expected.count
            other = ~fewer & ~more & (has.hashes != expected.hashes)
            self._report("missing", fewer & checked, window, f"{name} lacks rows of these requests")
            self._report("double", more & checked, window, f"{name} has more rows than these requests")
            self._report("changed", other & checked, window, f"{name} has other rows than these requests")

    def _decoded(
        self, requests: pa.RecordBatch, is_replayed: np.ndarray
    ) -> Iterator[tuple[Decoded, Mapping[str, Writing]]]:
        """Decode requests as their rows were written, and yield with them what each table's rows were written with.

        Tables may differ in the attributes that were lifted: then the requests are decoded several times, and the
        errors are those of the first time.
        """
        names, offsets = list(self._columns), requests.column(OFFSET.name).to_numpy()
        by_table = [self._columns[name].writings(offsets, is_replayed) for name in names]
        for together, places in grouped(list(zip(*by_table, strict=True))):
            writings = dict(zip(names, together, strict=True))
            part = requests if len(places) == requests.num_rows else requests.take(pa.array(places))
            place = (part.column("request"), part.column(OFFSET.name), part.column(APPEND_TIME.name))
            lifted_sets = list(dict.fromkeys(lifted_of(writing) for writing in together if lifted_of(writing)))
            for at, lifted in enumerate(lifted_sets or [()]):
                served = ((), lifted) if at == 0 else (lifted,)  # without lifted columns, any decoding will do
                those = {name: writing for name, writing in writings.items() if lifted_of(writing) in served}
                for decoded in decode_parts(self._signal, *place, self._own.partition, lifted):
                    yield (decoded if at == 0 else Decoded(decoded.rows, decoded.errors.slice(0, 0))), those

    def _as_errors(self, requests: pa.RecordBatch) -> pa.RecordBatch:
        count = requests.num_rows
        partitions = pa.array(np.full(count, self._own.partition, np.int32))
        columns = {
            OFFSET.name: requests.column(OFFSET.name),
            "_topic_partition": partitions,
            "_append_time": requests.column(APPEND_TIME.name),
            "raw": requests.column("request"),
            "_index": pa.nulls(count, pa.int32()),
        }
        return pa.RecordBatch.from_pydict(columns)

    def _report(self, kind: str, wrong: np.ndarray, window: OffsetRange, detail: str) -> None:
        self._found.problems += [Problem(kind, one, detail) for one in runs(wrong, window.start)]

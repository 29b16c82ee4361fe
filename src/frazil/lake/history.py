"""The history of a log: the rows that its table holds, by offset, exactly and in order.

Every batch is checked to go on where the one before it ended, so a table with a gap, a double or a wrong order is
found by reading it. Who reads for long may see the table compacted and old files removed under it: then the rest
is planned anew from the table as it is. What can't be read now may be asked for again: the reader knows its offset.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.coverage import without
from frazil.core.errors import FrazilError, LakeUnavailable, TableDamaged
from frazil.core.lake_settings import ReaderSettings
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange, Place
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.lake.ahead import Ahead
from frazil.lake.catalog import is_there, open_catalog
from frazil.lake.file_rows import FileRows
from frazil.lake.offset_files import (
    OffsetFile,
    Piece,
    find_places,
    pieces,
    plan_after,
    plan_all,
    plan_offsets,
    plan_times,
)
from frazil.lake.reasons import reason
from frazil.lake.remembered import check_columns, named
from frazil.lake.row_order import first_wrong, goes_on, is_rising
from frazil.lake.tables import table_of
from frazil.lake.token import check_handed_over, end_before_log, ends, first_held, gaps, is_transformed, read_token

WINDOW_BYTES = 32 * 1024 * 1024
WINDOW_ROWS_MIN, WINDOW_ROWS_MAX = 1_000, 250_000
SPREAD = 4
"""Rows take about this many times the room of their Parquet file."""

LOOKS_MAX = 3

Found = TypeVar("Found")

_log = logging.getLogger("frazil.lake")


@dataclass(frozen=True, slots=True)
class Plan:
    """The table as it was looked at, the files of a range of it, and gaps that a person has accepted.

    `after` is set if only files added with that place or later were looked for.
    """

    table: Table
    files: list[OffsetFile]
    wanted: OffsetRange
    gaps: list[OffsetRange]
    after: Place | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the files may hold all rows of the range, by their statistics."""
        parts = without(self.wanted, self.gaps)
        return all(piece.files for part in parts for piece in pieces(self.files, part, WINDOW_ROWS_MAX))


@dataclass(frozen=True, slots=True)
class TableFigures:
    """What the metadata of a table says of one log, without a look at its files.

    `rows` are those of the whole table and `ends` the sum of how far it has each log, so a table that has every row up
    to its ends has as many of one as of the other. `size_bytes` are known of a table that has one log alone.
    """

    end: int
    snapshot_id: int | None
    committed_ms: int | None
    gaps: tuple[OffsetRange, ...]
    rows: int | None
    ends: int
    size_bytes: int | None
    transformed: bool


class TableHistories:
    """The histories of a lake. The catalog is opened once, and is not there as long as nothing was ever moved."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._catalog: Catalog | None = None

    def of(self, topic: TopicName, log_id: str, former: Sequence[str] = ()) -> TableHistory | None:
        """`former` are the logs whose place this one has taken."""
        with self._guard:
            if self._catalog is None:
                if not is_there(self._settings):
                    return None
                self._catalog = open_catalog(self._settings)
        return TableHistory(self._catalog, topic, log_id, self._settings.reader, former)


class TableHistory:
    def __init__(
        self,
        catalog: Catalog,
        topic: TopicName,
        log_id: str,
        settings: ReaderSettings,
        former: Sequence[str] = (),
    ) -> None:
        self._catalog = catalog
        self._former = former
        self._settings = settings
        self._log_id = log_id
        self.topic = topic
        self.name, self._partition = table_of(topic)

    def span(self) -> OffsetRange | None:
        """The offsets that the table must have, by its token; None if it has nothing of the log.

        Rows that are gone from it count: a reader from the first of them is refused, and does not begin later.
        """
        held = self._held()
        if held is None:
            return None
        table, end = held
        first = first_held(table, self._log_id)
        return OffsetRange(first, end) if first < end else None

    def span_of_files(self) -> OffsetRange | None:
        """From the first offset that is in the table's files; None if none is."""

        def find(table: Table, end: int) -> OffsetRange | None:
            files = plan_all(table, self._partition)
            return OffsetRange(min(file.low for file in files), end) if files else None

        return self._looked_up(0, find)

    def look(self) -> tuple[Table, int] | None:
        """The table as it is now and how far it has the log; None if it has nothing of it."""
        return self._held()

    def figures(self) -> TableFigures | None:
        """What the table says of the log and of itself; None if it has nothing of the log."""
        table = self._load()
        token = None if table is None else read_token(table, self._log_id)
        return None if table is None or token is None else _figures(table, self._log_id, token.end)

    def statement_end(self) -> int:
        """How far a statement has taken the log, whose result the table holds; 0 if it holds the rows themselves."""
        table = self._load()
        token = read_token(table, self._log_id) if table is not None and is_transformed(table) else None
        return 0 if token is None else token.end

    def read(
        self,
        start: int,
        end: int,
        stored: pa.Schema,
        plan: Plan | None = None,
        *,
        after: Place | None = None,
        skips_missing: bool = False,
    ) -> HistoryReader:
        """The rows from `start` up to `end`, or up to where the table goes, in the form of the topic's schema.

        A plan that was made before is followed as far as it goes; what fails of it is planned anew. `after` is where
        a row before `start` is, or was: the first plan looks from there on. Rows that must be there and are not are
        an error, unless the reader skips them.
        """
        return HistoryReader(self, start, end, stored, plan, after, skips_missing)

    def offset_at_time(self, time_us: int, *, skips_missing: bool = False) -> int | None:
        """The first offset appended at or after a time; None if the table holds no such row.

        The row before it must be there, unless what is missing is skipped: one that is gone may have been the first.
        """

        def find(table: Table, end: int) -> int | None:
            found: int | None = None
            rows = FileRows(table, ["_append_time"], self._partition)
            for file in plan_times(table, self._partition, time_us):
                if found is not None and file.low > found:
                    break
                for batch in rows.batches(file, OffsetRange(file.low, file.high)):
                    later = batch.filter(pc.greater_equal(batch.column(1).cast(pa.int64()), time_us))
                    if later.num_rows:
                        first = pc.min(later.column(0)).as_py()
                        found = first if found is None else min(found, first)
            if not skips_missing:
                self._check_held(table, (end if found is None else found) - 1)
            return found

        return self._looked_up(0, find)

    def places(self, offsets: Collection[int]) -> dict[int, Place]:
        """Where the rows are, by one look at the table; of those that it holds."""

        def find(table: Table, end: int) -> dict[int, Place]:
            return find_places(table, self._partition, sorted(offset for offset in offsets if offset < end))

        return self._looked_up(0, find) or {}

    def _check_held(self, table: Table, offset: int) -> None:
        known = any(gap.start <= offset < gap.end for gap in gaps(table, self._log_id))
        if offset >= 0 and not known and not plan_offsets(table, self._partition, OffsetRange(offset, offset + 1)):
            raise self.damaged(offset, f"offset {offset} is missing")

    # --- for the reader

    def damaged(self, offset: int, why: str) -> TableDamaged:
        return TableDamaged(str(self.topic), str(self.name), offset, why)

    def plan(self, start: int, end: int, after: Place | None = None, *, log_start: int | None = None) -> Plan | None:
        """How to read a range, as far as the table holds it; None if it holds nothing of it.

        `log_start` is the first offset of the log, for a reader that goes on there.
        """

        def find(table: Table, table_end: int) -> Plan | None:
            if log_start is not None:
                table_end = end_before_log(table, self._log_id, table_end, log_start)
            if min(end, table_end) <= start:
                return None
            wanted, known = OffsetRange(start, min(end, table_end)), gaps(table, self._log_id)
            if after is not None:
                plan = Plan(table, plan_after(table, self._partition, wanted, after), wanted, known, after)
                if plan.is_whole:
                    return plan
                _log.info("%s: rows from offset %d on are not all behind %s", self.name, start, after.file)
            return Plan(table, plan_offsets(table, self._partition, wanted), wanted, known)

        return self._looked_up(start, find)

    @property
    def partition(self) -> int:
        return self._partition

    @property
    def settings(self) -> ReaderSettings:
        return self._settings

    @property
    def properties(self) -> Mapping[str, Any]:
        return self._catalog.properties

    def problem(self, offset: int, error: Exception, path: str = "") -> FrazilError:
        """What went wrong, in the words of a reader: the bytes are wrong, or the lake can't be had now."""
        if isinstance(error, FrazilError):
            return error
        why = reason(error, self._catalog.properties)
        if isinstance(error, pa.ArrowInvalid | FileNotFoundError | NotImplementedError | KeyError | ValueError):
            place = f"{path}: " if path else ""
            return self.damaged(offset, f"{place}{why}")
        return LakeUnavailable("object_store", f"{self.name} cannot be read at offset {offset} of {self.topic}: {why}")

    def _held(self) -> tuple[Table, int] | None:
        """The table and how far it has the log; None if it has nothing of it, or not as it was."""
        table = self._load()
        if table is not None:
            check_handed_over(table, self._log_id, self._former)
        token = None if table is None or is_transformed(table) else read_token(table, self._log_id)
        return (table, token.end) if table is not None and token is not None and token.end else None

    def _load(self) -> Table | None:
        try:
            return named(self._catalog.load_table(self.name.identifier))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except FrazilError:
            raise
        except Exception as error:
            why = reason(error, self._catalog.properties)
            raise LakeUnavailable("catalog", f"{self.name} could not be loaded: {why}") from error

    def _looked_up(self, offset: int, find: Callable[[Table, int], Found | None]) -> Found | None:
        """What is found in the table; None if it has nothing of the log.

        Expiry may remove a manifest or a file while we look: then the table as it is now no longer names it.
        """
        for attempt in range(LOOKS_MAX):
            held = self._held()
            if held is None:
                return None
            try:
                return find(*held)
            except Exception as error:
                if not isinstance(error, FileNotFoundError) or attempt == LOOKS_MAX - 1:
                    raise self.problem(offset, error) from error
        raise AssertionError("the last look returns or raises")


def _figures(table: Table, log_id: str, end: int) -> TableFigures:
    snapshot, all_ends = table.current_snapshot(), ends(table)
    summary = {} if snapshot is None or snapshot.summary is None else snapshot.summary.additional_properties
    rows, size = summary.get("total-records"), summary.get("total-files-size")
    deleted = int(summary.get("total-position-deletes", 0)) + int(summary.get("total-equality-deletes", 0))
    return TableFigures(
        end,
        None if snapshot is None else snapshot.snapshot_id,
        None if snapshot is None else snapshot.timestamp_ms,
        tuple(sorted(gaps(table, log_id))),
        None if rows is None or deleted else int(rows),
        sum(all_ends.values()),
        None if size is None or len(all_ends) > 1 else int(size),
        is_transformed(table),
    )


class HistoryReader:
    """Batches with `_offset`, in order, from threads that read ahead. Not to be shared between threads."""

    def __init__(
        self,
        history: TableHistory,
        start: int,
        end: int,
        stored: pa.Schema,
        plan: Plan | None = None,
        after: Place | None = None,
        skips_missing: bool = False,
    ) -> None:
        self._history = history
        self._skips_missing = skips_missing
        self._given = plan
        self._after = after
        self._looked_after: Place | None = None
        self._follows_given = False
        self._end = end
        self._schema = pa.schema([OFFSET, *stored])
        self._ahead: Ahead | None = None
        self._lost: set[str] = set()
        self._planned_end = 0
        self.offset = start

    def __iter__(self) -> HistoryReader:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            if self._ahead is None:
                self._ahead = self._planned()
            try:
                batch = next(self._ahead)
            except StopIteration:
                self.offset = max(self.offset, self._planned_end)
                self.close()
                raise
            except _FileFailed as failed:
                self.close()
                self._replan_or_raise(failed)
                continue
            except TableDamaged as damaged:
                self.close()
                if self._looked_after is None:
                    raise
                _log.info("%s; planning the rest anew, from all files", damaged)
                continue
            except BaseException:
                self.close()
                raise
            self.offset = batch.column(0)[-1].as_py() + 1
            return batch

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _planned(self) -> Ahead:
        plan, settings = self._given, self._history.settings
        self._follows_given, self._given = plan is not None, None
        if plan is None:
            plan = self._history.plan(self.offset, self._end, self._after)
            self._after = None
        self._looked_after = None if plan is None else plan.after
        if plan is None:
            return Ahead([], 1, 1)
        self._planned_end = plan.wanted.end
        check_columns(plan.table, self._schema.names)
        columns = [name for name in self._schema.names[1:] if name in plan.table.schema().column_names]
        rows = FileRows(plan.table, columns, self._history.partition)
        cut = (
            piece
            for part in without(plan.wanted, plan.gaps)
            for piece in pieces(plan.files, part, _window_rows(plan.files))
        )
        work = (functools.partial(self._piece, rows, piece) for piece in cut)
        return Ahead(work, settings.max_concurrent_reads, settings.prefetch_size)

    def _replan_or_raise(self, failed: _FileFailed) -> None:
        """A file that is gone may have been compacted away: then the table as it is now no longer names it."""
        if self._follows_given:  # made at another time, perhaps with keys that have run out since
            why = reason(failed.error, self._history.properties)
            _log.info("%s: %s; planning the rest of %s anew", failed.path, why, self._history.topic)
            return
        if isinstance(failed.error, FileNotFoundError) and failed.path not in self._lost:
            self._lost.add(failed.path)
            _log.info("%s is gone; planning the rest of %s anew", failed.path, self._history.topic)
            return
        raise self._history.problem(self.offset, failed.error, failed.path) from failed.error

    # --- in the threads that read ahead

    def _piece(self, rows: FileRows, piece: Piece) -> Iterator[pa.RecordBatch]:
        at = piece.range.start
        if not piece.files:
            self._skip_or_raise(piece.range, at, f"offsets {at} up to {piece.range.end} are missing")
            return
        if len(piece.files) == 1:
            for batch in self._file(rows, piece.files[0], piece.range):
                if not goes_on(batch, at):
                    break  # not in order, or not whole: the windows will tell
                yield self._as_stored(batch)
                at += batch.num_rows
        while at < piece.range.end:
            window = OffsetRange(at, min(at + _window_rows(piece.files), piece.range.end))
            yield from self._window(rows, piece.files, window)
            at = window.end

    def _window(self, rows: FileRows, files: Sequence[OffsetFile], window: OffsetRange) -> Iterator[pa.RecordBatch]:
        """All rows of the window, from whatever files, put in order."""
        found = [
            self._as_stored(batch)  # files may be older than a column, and PyIceberg fills in types of its own
            for file in files
            if file.low < window.end and file.high > window.start
            for batch in self._file(rows, file, window)
        ]
        if not found:
            self._skip_or_raise(window, window.start, f"offsets {window.start} up to {window.end} are missing")
            return
        ordered = pa.Table.from_batches(found).sort_by(OFFSET.name).combine_chunks()
        for batch in ordered.to_batches():
            if not goes_on(batch, window.start) or batch.num_rows < len(window):
                self._skip_or_raise(window, *first_wrong(batch, window), skippable=is_rising(batch))
            yield batch

    def _skip_or_raise(self, where: OffsetRange, offset: int, why: str, *, skippable: bool = True) -> None:
        """Doubles are never skipped, nor what a plan that leaves files out takes for missing."""
        if not self._skips_missing or not skippable or self._looked_after is not None:
            raise self._history.damaged(offset, why)
        _log.warning(
            "%s: %s; what is missing from %d up to %d is skipped", self._history.topic, why, where.start, where.end
        )

    def _file(self, rows: FileRows, file: OffsetFile, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        try:
            yield from (batch for batch in rows.batches(file, wanted) if batch.num_rows)
        except Exception as error:
            raise _FileFailed(file.path, error) from error

    def _as_stored(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        if batch.schema.equals(self._schema):
            return batch
        columns = []
        for field in self._schema:
            if field.name in batch.schema.names:
                column = batch.column(field.name)
                columns.append(column if column.type.equals(field.type) else column.cast(field.type))
            elif field.nullable:
                columns.append(pa.nulls(batch.num_rows, field.type))
            else:
                raise self._history.damaged(batch.column(0)[0].as_py(), f"column {field.name} is gone")
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)


class _FileFailed(Exception):
    def __init__(self, path: str, error: Exception) -> None:
        super().__init__(path)
        self.path = path
        self.error = error


def _window_rows(files: Sequence[OffsetFile]) -> int:
    size = sum(file.task.file.file_size_in_bytes for file in files)
    rows = sum(file.task.file.record_count for file in files)
    each = max(1, SPREAD * size // max(1, rows))
    return int(min(WINDOW_ROWS_MAX, max(WINDOW_ROWS_MIN, WINDOW_BYTES // each)))

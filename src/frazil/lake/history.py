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

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.errors import FrazilError, LakeUnavailable, TableDamaged
from frazil.core.lake_settings import ReaderSettings
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange, Place
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.lake.ahead import Ahead
from frazil.lake.catalog import is_there, open_catalog
from frazil.lake.file_rows import FileRows
from frazil.lake.offset_files import OffsetFile, Piece, pieces, plan_all, plan_offsets, plan_times
from frazil.lake.reasons import reason
from frazil.lake.tables import table_of
from frazil.lake.token import gaps, is_transformed, read_token

WINDOW_BYTES = 32 * 1024 * 1024
WINDOW_ROWS_MIN, WINDOW_ROWS_MAX = 1_000, 250_000
SPREAD = 4
"""Rows take about this many times the room of their Parquet file."""

LOOKS_MAX = 3

Found = TypeVar("Found")

_log = logging.getLogger("frazil.lake")


@dataclass(frozen=True, slots=True)
class Plan:
    """The table as it was looked at, the files of a range of it, and gaps that a person has accepted."""

    table: Table
    files: list[OffsetFile]
    wanted: OffsetRange
    gaps: list[OffsetRange]


class TableHistories:
    """The histories of a lake. The catalog is opened once, and is not there as long as nothing was ever moved."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._catalog: Catalog | None = None

    def of(self, topic: TopicName, log_id: str) -> TableHistory | None:
        with self._guard:
            if self._catalog is None:
                if not is_there(self._settings):
                    return None
                self._catalog = open_catalog(self._settings)
        return TableHistory(self._catalog, topic, log_id, self._settings.reader)


class TableHistory:
    def __init__(self, catalog: Catalog, topic: TopicName, log_id: str, settings: ReaderSettings) -> None:
        self._catalog = catalog
        self._settings = settings
        self._log_id = log_id
        self.topic = topic
        self.name, self._partition = table_of(topic)

    def span(self) -> OffsetRange | None:
        """The first offset that the table holds and how far it goes; None if it has nothing of the log."""

        def find(table: Table, end: int) -> OffsetRange | None:
            files = plan_all(table, self._partition)
            return OffsetRange(min(file.low for file in files), end) if files else None

        return self._looked_up(0, find)

    def look(self) -> tuple[Table, int] | None:
        """The table as it is now and how far it has the log; None if it has nothing of it."""
        return self._held()

    def read(self, start: int, end: int, stored: pa.Schema, plan: Plan | None = None) -> HistoryReader:
        """The rows from `start` up to `end`, or up to where the table goes, in the form of the topic's schema.

        A plan that was made before is followed as far as it goes; what fails of it is planned anew.
        """
        return HistoryReader(self, start, end, stored, plan)

    def offset_at_time(self, time_us: int) -> int | None:
        """The first offset appended at or after a time; None if the table holds no such row."""

        def find(table: Table, _: int) -> int | None:
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
            return found

        return self._looked_up(0, find)

    def places(self, offsets: Collection[int]) -> dict[int, Place]:
        """Where the rows are, by one look at the table; of those that it holds."""

        def find(table: Table, end: int) -> dict[int, Place]:
            snapshot = table.current_snapshot()
            held = sorted(offset for offset in offsets if offset < end)
            if snapshot is None or not held:
                return {}
            files = plan_offsets(table, self._partition, OffsetRange(held[0], held[-1] + 1))
            return {
                offset: Place(snapshot.snapshot_id, file.path)
                for offset in held
                for file in files
                if file.low <= offset < file.high
            }

        return self._looked_up(0, find) or {}

    # --- for the reader

    def plan(self, start: int, end: int) -> Plan | None:
        """How to read a range, as far as the table holds it; None if it holds nothing of it."""

        def find(table: Table, table_end: int) -> Plan | None:
            if min(end, table_end) <= start:
                return None
            wanted = OffsetRange(start, min(end, table_end))
            return Plan(table, plan_offsets(table, self._partition, wanted), wanted, gaps(table, self._log_id))

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
            return TableDamaged(str(self.topic), str(self.name), offset, f"{place}{why}")
        return LakeUnavailable("object_store", f"{self.name} cannot be read at offset {offset} of {self.topic}: {why}")

    def _held(self) -> tuple[Table, int] | None:
        """The table and how far it has the log; None if it has nothing of it, or not as it was."""
        try:
            table = self._catalog.load_table(self.name.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            why = reason(error, self._catalog.properties)
            raise LakeUnavailable("catalog", f"{self.name} could not be loaded: {why}") from error
        token = None if is_transformed(table) else read_token(table, self._log_id)
        return (table, token.end) if token is not None and token.end else None

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


class HistoryReader:
    """Batches with `_offset`, in order, from threads that read ahead. Not to be shared between threads."""

    def __init__(
        self, history: TableHistory, start: int, end: int, stored: pa.Schema, plan: Plan | None = None
    ) -> None:
        self._history = history
        self._given = plan
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
            plan = self._history.plan(self.offset, self._end)
        if plan is None:
            return Ahead([], 1, 1)
        self._planned_end = plan.wanted.end
        columns = [name for name in self._schema.names[1:] if name in plan.table.schema().column_names]
        rows = FileRows(plan.table, columns, self._history.partition)
        cut = pieces(plan.files, plan.wanted, _window_rows(plan.files))
        work = (functools.partial(self._piece, rows, piece) for piece in cut if not _is_known(piece, plan.gaps))
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
            raise self._damaged(at, f"offsets {at} up to {piece.range.end} are missing")
        if len(piece.files) == 1:
            for batch in self._file(rows, piece.files[0], piece.range):
                if not _goes_on(batch, at):
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
            raise self._damaged(window.start, f"offsets {window.start} up to {window.end} are missing")
        ordered = pa.Table.from_batches(found).sort_by(OFFSET.name).combine_chunks()
        for batch in ordered.to_batches():
            if not _goes_on(batch, window.start) or batch.num_rows < len(window):
                raise self._damaged(*_first_wrong(batch, window))
            yield batch

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
                raise self._damaged(batch.column(0)[0].as_py(), f"column {field.name} is gone")
        return pa.RecordBatch.from_arrays(columns, schema=self._schema)

    def _damaged(self, offset: int, why: str) -> TableDamaged:
        return TableDamaged(str(self._history.topic), str(self._history.name), offset, why)


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


def _goes_on(batch: pa.RecordBatch, at: int) -> bool:
    """Whether the batch holds exactly the offsets from `at` on."""
    offsets = batch.column(0).to_numpy(zero_copy_only=False)
    count = len(offsets)
    return bool(offsets[0] == at and offsets[-1] == at + count - 1 and (np.diff(offsets) == 1).all())


def _first_wrong(batch: pa.RecordBatch, window: OffsetRange) -> tuple[int, str]:
    """The first offset of a sorted window that is not there once, and what is wrong with it."""
    offsets = batch.column(0).to_numpy(zero_copy_only=False)
    doubles = offsets[1:][np.diff(offsets) == 0]
    missing = np.setdiff1d(np.arange(window.start, window.end), offsets)
    if len(doubles) and (not len(missing) or doubles[0] < missing[0]):
        return int(doubles[0]), f"offset {doubles[0]} is there more than once"
    first = int(missing[0])
    run = int(np.argmax(np.append(np.diff(missing) != 1, True))) + 1
    return first, f"offsets {first} up to {first + run} are missing"


def _is_known(piece: Piece, known_gaps: Sequence[OffsetRange]) -> bool:
    """A gap that a person has accepted: readers go on behind it."""
    return not piece.files and any(
        gap.start <= piece.range.start and piece.range.end <= gap.end for gap in known_gaps
    )  # fmt: skip

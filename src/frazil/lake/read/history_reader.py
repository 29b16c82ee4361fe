"""Batches of a table's rows, in order, prefetched by a few threads.

Every batch is checked to continue where the previous one ended. If a file was compacted away, the rest is planned
again.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.core.coverage import without
from frazil.core.errors import TableDamaged
from frazil.core.offsets import OffsetRange, Place
from frazil.core.rows import OFFSET
from frazil.lake.catalogs.error_text import reason
from frazil.lake.read.file_rows import FileRows
from frazil.lake.read.offset_files import OffsetFile, Piece, pieces
from frazil.lake.read.prefetch import Prefetcher
from frazil.lake.read.row_order import first_problem, is_contiguous, is_rising
from frazil.lake.tables.field_ids import check_columns

if TYPE_CHECKING:
    from frazil.lake.read.history import Plan, TableHistory

WINDOW_BYTES = 32 * 1024 * 1024
WINDOW_ROWS_MIN, WINDOW_ROWS_MAX = 1_000, 250_000
SPREAD = 4
"""Rows take about this many times the size of their Parquet file."""

_log = logging.getLogger("frazil.lake")


class HistoryReader:
    """Batches with `_offset`, in order, prefetched by threads. Not thread-safe."""

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
        self._ahead: Prefetcher | None = None
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
                _log.info("%s; replanning the rest, from all files", damaged)
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

    def _planned(self) -> Prefetcher:
        plan, settings = self._given, self._history.settings
        self._follows_given, self._given = plan is not None, None
        if plan is None:
            plan = self._history.plan(self.offset, self._end, self._after)
            self._after = None
        self._looked_after = None if plan is None else plan.after
        self._planned_end = self.offset  # the end of an earlier plan says nothing about the table of now
        if plan is None:
            return Prefetcher([], 1, 1)
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
        return Prefetcher(work, settings.max_concurrent_reads, settings.prefetch_size)

    def _replan_or_raise(self, failed: _FileFailed) -> None:
        """Replan if a missing file was compacted away: then the current table no longer references it."""
        if self._follows_given:  # loaded earlier, perhaps with keys that have expired
            why = reason(failed.error, self._history.properties)
            _log.info("%s: %s; replanning the rest of %s", failed.path, why, self._history.topic)
            return
        if isinstance(failed.error, FileNotFoundError) and failed.path not in self._lost:
            self._lost.add(failed.path)
            _log.info("%s is gone; replanning the rest of %s", failed.path, self._history.topic)
            return
        raise self._history.problem(self.offset, failed.error, failed.path) from failed.error

    # --- in the prefetching threads

    def _piece(self, rows: FileRows, piece: Piece) -> Iterator[pa.RecordBatch]:
        at = piece.range.start
        if not piece.files:
            self._skip_or_raise(piece.range, at, f"offsets {at} up to {piece.range.end} are missing")
            return
        if len(piece.files) == 1:
            for batch in self._file(rows, piece.files[0], piece.range):
                if not is_contiguous(batch, at):
                    break  # not in order, or incomplete: the windows decide
                yield self._as_stored(batch)
                at += batch.num_rows
        while at < piece.range.end:
            window = OffsetRange(at, min(at + _window_rows(piece.files), piece.range.end))
            yield from self._window(rows, piece.files, window)
            at = window.end

    def _window(self, rows: FileRows, files: Sequence[OffsetFile], window: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Read all rows of the window from all its files, sorted."""
        found = [
            self._as_stored(batch)  # files may lack a newer column, and PyIceberg fills in its own types
            for file in files
            if file.low < window.end and file.high > window.start
            for batch in self._file(rows, file, window)
        ]
        if not found:
            self._skip_or_raise(window, window.start, f"offsets {window.start} up to {window.end} are missing")
            return
        ordered = pa.Table.from_batches(found).sort_by(OFFSET.name).combine_chunks()
        for batch in ordered.to_batches():
            if not is_contiguous(batch, window.start) or batch.num_rows < len(window):
                self._skip_or_raise(window, *first_problem(batch, window), skippable=is_rising(batch))
            yield batch

    def _skip_or_raise(self, where: OffsetRange, offset: int, why: str, *, skippable: bool = True) -> None:
        """Never skip duplicates, nor rows that only seem missing because a plan left files out."""
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

"""The history of a log: the rows that its table holds, by offset, exactly and in order.

Every batch must continue where the previous one ended, so reading detects gaps, duplicates and wrong order. During a
long read the table may be compacted and old files removed: then the rest is planned again from the current table. A
failed read may be retried: the reader knows its offset.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.coverage import without
from frazil.core.errors import FrazilError, LakeUnavailable, TableDamaged
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange, Place
from frazil.core.settings import Settings
from frazil.core.settings.lake import ReaderSettings
from frazil.lake.catalogs.error_text import reason
from frazil.lake.catalogs.opening import catalog_exists, open_catalog
from frazil.lake.read.derived_tables import DerivedTables, derived_tables
from frazil.lake.read.file_rows import FileRows
from frazil.lake.read.history_reader import WINDOW_ROWS_MAX, HistoryReader
from frazil.lake.read.offset_files import (
    OffsetFile,
    find_places,
    pieces,
    plan_after,
    plan_all,
    plan_offsets,
    plan_times,
)
from frazil.lake.tables.field_ids import named
from frazil.lake.tables.schema import TableName, table_of
from frazil.lake.tables.token import (
    check_handed_over,
    end_before_log,
    ends,
    first_held,
    gaps,
    is_transformed,
    read_token,
)

LOOKS_MAX = 3

Found = TypeVar("Found")

_log = logging.getLogger("frazil.lake")


@dataclass(frozen=True, slots=True)
class Plan:
    """A loaded table, the files of a range of it, and gaps that an administrator has accepted.

    `after` is set if only files added at that place or later were searched.
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
    """What a table's metadata says about one log, without reading its files.

    `rows` counts the whole table and `ends` is the sum of the committed ends of all logs, so the two are equal in a
    table that has every row. `size_bytes` is known for a table with only one log.
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
    """The histories of a lake. The catalog is opened once; there is none if nothing was ever moved."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._guard = threading.Lock()
        self._catalog: Catalog | None = None

    def of(self, topic: TopicName, log_id: str, former: Sequence[str] = ()) -> TableHistory | None:
        """`former` are the logs that this one replaced."""
        with self._guard:
            if self._catalog is None:
                if not catalog_exists(self._settings):
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
        """Return the offsets that the table must have, by its token; None if it has nothing of the log.

        Rows that are missing from the table count: a reader from the first of them is refused, and does not start
        later.
        """
        held = self._held()
        if held is None:
            return None
        table, end = held
        first = first_held(table, self._log_id)
        return OffsetRange(first, end) if first < end else None

    def span_of_files(self) -> OffsetRange | None:
        """Return the span from the first offset in the table's files; None if there is none."""

        def find(table: Table, end: int) -> OffsetRange | None:
            files = plan_all(table, self._partition)
            return OffsetRange(min(file.low for file in files), end) if files else None

        return self._looked_up(0, find)

    def look(self) -> tuple[Table, int] | None:
        """Load the table and its committed end of the log; None if it has nothing of the log."""
        return self._held()

    def figures(self) -> TableFigures | None:
        """Return the figures of the log and the table; None if it has nothing of the log."""
        table = self._load()
        token = None if table is None else read_token(table, self._log_id)
        return None if table is None or token is None else _figures(table, self._log_id, token.end)

    def statement_end(self) -> int:
        """Return the end of a statement's result in the table; 0 if the table holds the rows themselves."""
        table = self._load()
        token = read_token(table, self._log_id) if table is not None and is_transformed(table) else None
        return 0 if token is None else token.end

    def furthest_end(self, others: Collection[str] = ()) -> int:
        """Return the furthest end of the log in its table, or in one of those beside it; 0 if none has any of it.

        After a crash of the mover a table of derived rows may be ahead of the topic's own.
        """
        tables = [self._load(), *(self._load(TableName(self.name.namespace, one)) for one in others)]
        tokens = [read_token(table, self._log_id) for table in tables if table is not None]
        return max((token.end for token in tokens if token is not None), default=0)

    def derived(self, others: list[str]) -> DerivedTables:
        """Load the topic's table and those beside it that exist, if their rows are derived from the topic's."""
        return derived_tables(self._catalog, self.name, self._log_id, self._partition, others)

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
        """Read the rows from `start` up to `end`, or up to the table's end, in the topic's schema.

        A given plan is followed as far as possible; parts that fail are planned again. `after` is the place, current or
        former, of a row before `start`: the first plan searches from there. Missing rows are an error, unless the
        reader skips them.
        """
        return HistoryReader(self, start, end, stored, plan, after, skips_missing)

    def offset_at_time(self, time_us: int, *, skips_missing: bool = False) -> int | None:
        """Return the first offset appended at or after a time; None if the table holds no such row.

        The row before it must exist, unless missing rows are skipped: a missing row may have been the first.
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
        """Return the places of these rows, as far as the table holds them, from one load of the table."""

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
        """Plan the read of a range, as far as the table holds it; None if it holds nothing of it.

        `log_start` is the first offset of the log, for a reader that continues there.
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
        """Convert an error for readers: the bytes are wrong, or the lake is unavailable."""
        if isinstance(error, FrazilError):
            return error
        why = reason(error, self._catalog.properties)
        if isinstance(error, pa.ArrowInvalid | FileNotFoundError | NotImplementedError | KeyError | ValueError):
            place = f"{path}: " if path else ""
            return self.damaged(offset, f"{place}{why}")
        return LakeUnavailable("object_store", f"{self.name} cannot be read at offset {offset} of {self.topic}: {why}")

    def _held(self) -> tuple[Table, int] | None:
        """Load the table and its end of the log; None if it has nothing of it, or has changed."""
        table = self._load()
        if table is not None:
            check_handed_over(table, self._log_id, self._former)
        token = None if table is None or is_transformed(table) else read_token(table, self._log_id)
        return (table, token.end) if table is not None and token is not None and token.end else None

    def _load(self, name: TableName | None = None) -> Table | None:
        name = name or self.name
        try:
            return named(self._catalog.load_table(name.identifier))
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except FrazilError:
            raise
        except Exception as error:
            why = reason(error, self._catalog.properties)
            raise LakeUnavailable("catalog", f"{name} could not be loaded: {why}") from error

    def _looked_up(self, offset: int, find: Callable[[Table, int], Found | None]) -> Found | None:
        """Search the table; None if it has nothing of the log.

        Expiry may remove a manifest or a file during the search: then the current table no longer references it.
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

"""Requests in a table of errors, and rows of them that are appended later to the tables that lack them.

The token is not moved. A request is identified by its offset: one of which a table has rows is left alone. This is
looked up in the snapshot that the commit is pinned to, so that a repeated or a concurrent replay adds nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.exceptions import CommitFailedException

from frazil.core.errors import LakeUnavailable, TableRefused, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME, OFFSET
from frazil.core.settings import Settings
from frazil.lake.catalogs.error_text import reason
from frazil.lake.catalogs.opening import catalog_exists, catalog_properties, open_catalog
from frazil.lake.commit.commit import delay_seconds, drop_files, pinned_change
from frazil.lake.files.writer import DataFileWriter
from frazil.lake.read.derived_tables import DerivedTable, load_derived
from frazil.lake.tables.schema import TableLayout, TableName
from frazil.lake.tables.store import TableStore
from frazil.lake.tables.token import count_key, logs
from frazil.lake.tables.written import with_replay

ATTEMPTS_MAX = 8
FLUSH_BYTES = 64 * 2**20
ERROR_COLUMNS = [APPEND_TIME.name, "reason", "raw"]

_log = logging.getLogger("frazil.lake")


class UndecodedRequests:
    """The errors of one topic of telemetry, whose tables are in the namespace of the topic."""

    def __init__(self, settings: Settings, topic: TopicName, errors: TableName, wait: Callable[[float], None]) -> None:
        """Raises `TopicNotFound` if the topic has no table."""
        if not catalog_exists(settings):
            raise TopicNotFound(str(topic), "it has no table yet")
        self._catalog = open_catalog(settings)
        properties = catalog_properties(settings)
        self._store = TableStore(self._catalog, properties.get("warehouse"), properties)
        self._wait = wait
        self._errors = errors
        self._own = TableName(topic.namespace, topic.topic)
        own = load_derived(self._catalog, self._own, "", 0)
        if own is None:
            raise TopicNotFound(str(topic), "it has no table yet")
        self.logs = logs(own.table)
        """The logs of the topic's partitions, and their numbers."""

    def rows(self, log_id: str) -> Iterator[pa.RecordBatch]:
        """Yield offset, time of the append, reason and bytes of each request that could not be decoded."""
        table = load_derived(self._catalog, self._errors, log_id, self.logs[log_id])
        if table is not None:
            yield from table.rows(ERROR_COLUMNS, OffsetRange(0, max(1, table.reach)))

    def replayed(self, log_id: str, offsets: pa.Array) -> set[int]:
        """Return which of these requests have rows in the topic's own table."""
        return _offsets_in(self._table(self._own, log_id), offsets)

    def append(
        self, name: TableName, layout: TableLayout, log_id: str, rows: pa.RecordBatch, written: tuple[str, ...]
    ) -> int:
        """Append the rows of all offsets that the table has none of; returns how many rows were added.

        `written` are the columns of the rows as the table records them.

        The table is created if needed. Whatever the answer to a commit is, the table is asked again.
        """
        self._ensure(name, layout, log_id)
        for attempt in range(1, ATTEMPTS_MAX + 1):
            table = self._table(name, log_id)
            there = pa.array(sorted(_offsets_in(table, rows.column(OFFSET.name))), pa.int64())
            missing: pa.RecordBatch = rows.filter(pc.invert(pc.is_in(rows.column(OFFSET.name), there)))
            if not missing.num_rows or self._commit(name, table, log_id, missing, written):
                return int(missing.num_rows)
            self._wait(delay_seconds(attempt))
            self._ensure(name, layout, log_id)
        raise LakeUnavailable("catalog", f"{name} was not committed in {ATTEMPTS_MAX} attempts")

    def _ensure(self, name: TableName, layout: TableLayout, log_id: str) -> None:
        """Create the table if needed, and remove it again if the topic's own table is gone: its tenant was deleted."""
        self._store.forget(name)
        self._store.ensure_result(name, layout)
        if name in self._store.take_created():
            own = load_derived(self._catalog, self._own, log_id, self.logs[log_id])
            if own is None or log_id not in logs(own.table):
                self._store.remove_empty(name)
                raise TableRefused(f"{self._own} is no longer there", table=str(self._own))

    def _table(self, name: TableName, log_id: str) -> DerivedTable:
        found = load_derived(self._catalog, name, log_id, self.logs[log_id])
        if found is None:
            raise TableRefused(f"{name} is no longer there", table=str(name))
        return found

    def _commit(
        self, name: TableName, table: DerivedTable, log_id: str, rows: pa.RecordBatch, written: tuple[str, ...]
    ) -> bool:
        """Make one attempt on top of the snapshot that was searched; the next look determines what became of it."""
        writer = DataFileWriter(self._store.files_of(name), FLUSH_BYTES)
        writer.add(rows)
        files = writer.close()
        before = 0 if table.counted is None and not table.token else table.counted
        counted = {} if before is None else {count_key(log_id): str(before + rows.num_rows)}
        extent = pc.min_max(rows.column(OFFSET.name)).as_py()
        recorded = with_replay(table.loaded, log_id, extent["min"], extent["max"] + 1, written)
        summary = {f"frazil.{log_id}.replayed": str(rows.num_rows)}
        change = pinned_change(table.loaded, files, counted, summary, properties=recorded)
        try:
            self._catalog.commit_table(table.loaded, change.requirements, change.updates)
        except CommitFailedException as error:
            _log.info("%s: a replay was refused (%s); looking again", name, reason(error, self._catalog.properties))
            drop_files(table.loaded, files)
        except Exception as error:  # noqa: BLE001 - the answer is unknown, whatever went wrong: the table is asked
            _log.warning("%s: a replay has no answer (%s); looking", name, reason(error, self._catalog.properties))
        else:
            return True
        return False


def _offsets_in(table: DerivedTable, wanted: pa.Array) -> set[int]:
    """Return which of these offsets the table has rows of."""
    extent, found = pc.min_max(wanted).as_py(), set[int]()
    if extent["min"] is None:
        return found
    for batch in table.rows([], OffsetRange(extent["min"], extent["max"] + 1)):
        offsets = batch.column(0)
        found.update(pc.unique(offsets.filter(pc.is_in(offsets, pc.unique(wanted)))).to_pylist())
    return found

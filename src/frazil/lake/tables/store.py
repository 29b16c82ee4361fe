"""The mover's tables of the lake: created on first use, cached between ticks."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NamespaceNotEmptyError, NoSuchNamespaceError, NoSuchTableError
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.core.clock import Clock, SystemClock
from frazil.core.errors import FrazilError, TableRefused
from frazil.core.partitioning import Partitioning
from frazil.core.rows import ENVELOPE
from frazil.core.settings.lake import MaintenanceSettings
from frazil.lake.catalogs.credentials import renew_at_ms
from frazil.lake.catalogs.embedded import check_own
from frazil.lake.catalogs.error_text import reason
from frazil.lake.commit.commit import Committed, Moved, commit_moves, drop_files
from frazil.lake.files.store_errors import lake_error
from frazil.lake.files.writer import TableFiles, metadata_for_tasks
from frazil.lake.maintenance.expired_files import ExpiredFiles, Sweeper
from frazil.lake.tables.field_ids import Remembered, named
from frazil.lake.tables.handover import hand_over
from frazil.lake.tables.last_row import is_last_row
from frazil.lake.tables.schema import (
    MESSAGES_BY_DAY,
    TYPED_BY_DAY,
    TableLayout,
    TableName,
    add_columns,
    ensure_table,
    lacks,
    partitioned_by,
    shown_partitioning,
    table_columns,
)
from frazil.lake.tables.token import TRANSFORMED, Token, check_no_earlier_log, derived_ends, ends, read_token

_log = logging.getLogger("frazil.lake")


class TableStore:
    def __init__(
        self,
        catalog: Catalog,
        warehouse: str | None,
        io_properties: dict[str, str],
        snapshots_max: int = MaintenanceSettings().snapshots_max,
        clock: Clock | None = None,
    ) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._io_properties = io_properties
        self._guard = threading.Lock()
        self._tables: dict[TableName, Table] = {}
        self._renew_at_ms: dict[TableName, int | None] = {}
        self._clock = clock or SystemClock()
        self._fits: dict[TableName, tuple[UUID, int, pa.Schema]] = {}
        self._partitioning_logged: set[TableName] = set()
        self._snapshots_max = snapshots_max
        self._expired: dict[TableName, ExpiredFiles] = {}
        self._sweeper = Sweeper(catalog)
        self._created: set[TableName] = set()

    def ensure(self, name: TableName, stored: pa.Schema, partitioning: Partitioning | None = None) -> None:
        """Return the table with all current columns of the topic."""
        usual = MESSAGES_BY_DAY if stored.equals(ENVELOPE) else TYPED_BY_DAY
        self._ensure(name, TableLayout(table_columns(stored), partitioning or usual), is_result=False)

    def ensure_result(self, name: TableName, layout: TableLayout) -> None:
        """Return the table with all columns of a statement's result, or of derived rows."""
        self._ensure(name, layout, is_result=True)

    def token(self, name: TableName, log_id: str, partition: int) -> Token | None:
        """Return the table's end of a log; raises `TableRefused` if it has rows of another log of the same topic and
        partition."""
        table = self._tables[name]
        check_no_earlier_log(table, log_id, partition)
        return read_token(table, log_id)

    def derived_ends(self, name: TableName, log_id: str) -> dict[str, int]:
        """Return what a topic's own table recorded of its derived tables, by their names without the namespace."""
        return derived_ends(self._tables[name], log_id)

    def hand_over(
        self,
        name: TableName,
        former: str,
        end: int,
        log_id: str,
        wait: Callable[[int], None],
        *,
        is_derived: bool = False,
    ) -> None:
        """Assign the rows of a former log to its renumbered successor, if that is still to be done.

        A derived table may have got its last rows earlier than at `end`.
        """
        known = ends(self._tables[name])
        if former in known and log_id not in known:
            own_end = min(end, known[former]) if is_derived else end
            table = hand_over(self._catalog, name, former, own_end, log_id, wait)
            with self._guard:
                self._tables[name] = table

    def is_last_row(self, name: TableName, log_id: str, partition: int, row: pa.RecordBatch) -> bool:
        """Whether a row of the log is the last one that the table got of it."""
        try:
            return is_last_row(named(self._tables[name]), log_id, partition, row)
        except FrazilError:
            raise
        except Exception as error:
            raise lake_error(name, error, self._location(name) or "", self._catalog.properties) from error

    def metadata_json(self, name: TableName) -> str:
        """Return the metadata of the table with the topic's names, which the rows use."""
        return metadata_for_tasks(named(self._tables[name]).metadata)

    def io_properties(self, name: TableName) -> dict[str, str]:
        return {**self._io_properties, **self._tables[name].io.properties}

    def files_of(self, name: TableName) -> TableFiles:
        """Return what tasks need to write the table's files."""
        return TableFiles(self.metadata_json(name), self.io_properties(name))

    def commit(self, name: TableName, moves: Sequence[Moved], move_id: str, wait: Callable[[int], None]) -> Committed:
        """Commit, delete the files of moves that others have made, and cache the new table."""
        known = self._tables.get(name)
        columns = self._columns_of(name, known) if known is not None else None
        committed = commit_moves(self._catalog, name, moves, move_id, wait, known, self._snapshots_max, columns)
        drop_files(committed.table, committed.unused)
        self._note_expired(name, committed)
        with self._guard:
            self._tables[name] = committed.table
        return committed

    def _columns_of(self, name: TableName, table: Table) -> str | None:
        """Return the fields of the topic's columns to record; None if no plan used the current table."""
        fits = self._fits.get(name)
        if fits is None or fits[:2] != _schema_of(table):
            return None
        return Remembered.of(table).with_those_of(named(table).schema(), fits[2]).text()

    def _note_expired(self, name: TableName, committed: Committed) -> None:
        """Schedule the files of removed snapshots for deletion, outside of commits."""
        table, now_ms = committed.table, committed.table.metadata.last_updated_ms
        files = self._expired.get(name)
        if files is None or not files.is_of(table):
            files = self._expired[name] = ExpiredFiles(table)
        files.note(committed.expired, now_ms)
        if files.claim_sweep(now_ms):
            self._sweeper.sweep(name, files, now_ms)

    def drop(self, name: TableName, files: Sequence[DataFile]) -> None:
        """Delete files that no commit was attempted with; those of a table no longer cached become orphans."""
        table = self._tables.get(name)
        if table is not None:
            drop_files(table, files)

    def problem(self, name: TableName, error: Exception) -> FrazilError:
        """Return why a table cannot be loaded or written, without secrets. It is never the error of another table."""
        if isinstance(error, FrazilError):
            return error
        table = self._tables.get(name)
        known = {**self._catalog.properties, **(table.io.properties if table is not None else {})}
        return TableRefused(f"{name} cannot be written ({reason(error, known)})", table=str(name))

    def take_created(self) -> set[TableName]:
        """Return the tables that were created since the last call, or may have been."""
        created, self._created = self._created, set()
        return created

    def remove_empty(self, name: TableName) -> None:
        """Remove a table that never had a row, with its files, and its namespace if nothing else is in it."""
        self.forget(name)
        try:
            with contextlib.suppress(NoSuchTableError):
                table = self._catalog.load_table(name.identifier)
                check_own(self._catalog, table)
                if ends(table) or len(table.metadata.snapshots) > 1:
                    return
                self._catalog.purge_table(name.identifier)
            with contextlib.suppress(NoSuchNamespaceError, NamespaceNotEmptyError):
                self._catalog.drop_namespace((name.namespace,))
        except FrazilError:
            raise
        except Exception as error:
            raise lake_error(name, error, self._location(name) or "", self._catalog.properties) from error

    def remembers(self, name: TableName) -> bool:
        return name in self._tables

    def forget(self, name: TableName) -> None:
        with self._guard:
            self._tables.pop(name, None)

    def forget_all(self) -> None:
        with self._guard:
            self._tables.clear()

    def _ensure(self, name: TableName, layout: TableLayout, *, is_result: bool) -> None:
        columns = layout.columns
        try:
            table = self._remembered(name)
            if table is None:
                place = self._location(name)
                table = ensure_table(self._catalog, name, layout, place, lambda: self._created.add(name))
                self._renew_at_ms[name] = renew_at_ms(table.io.properties, self._catalog.properties, self._now_ms())
                self._log_partitioning(name, table, layout.partitioning)
            check_own(self._catalog, table)
            if not is_result and TRANSFORMED in table.metadata.properties:
                raise TableRefused(
                    f"{name} holds the result of a statement, not the topic's rows; set `sql` for the topic again, "
                    "or move the table away",
                    table=str(name),
                )
            if self._fits.get(name) != (*_schema_of(table), columns):
                if lacks(table, columns):
                    table = add_columns(self._catalog, table, columns)
                self._fits[name] = (*_schema_of(table), columns)
        except FrazilError:
            self.forget(name)
            raise
        except Exception as error:
            self.forget(name)
            raise lake_error(name, error, self._location(name) or "", self._catalog.properties) from error
        with self._guard:
            self._tables[name] = table

    def _remembered(self, name: TableName) -> Table | None:
        """Return the cached table; None if its credentials are about to expire."""
        renew_at_ms = self._renew_at_ms.get(name)
        if renew_at_ms is not None and self._now_ms() >= renew_at_ms:
            self.forget(name)
        return self._tables.get(name)

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1_000

    def _log_partitioning(self, name: TableName, table: Table, wanted: Partitioning) -> None:
        """An existing table keeps its own partitioning; a different setting is logged once."""
        has = partitioned_by(table)
        if wanted.setting and has != wanted.fields and name not in self._partitioning_logged:
            self._partitioning_logged.add(name)
            _log.warning(
                "%s: %s is partitioned by %s already and stays so, not by %s",
                wanted.setting, name, shown_partitioning(has), shown_partitioning(wanted.fields),
            )  # fmt: skip

    def _location(self, name: TableName) -> str | None:
        """Return `{warehouse}/{namespace}/{topic}`; None if the warehouse is only a name that the catalog resolves."""
        if self._warehouse is None or "://" not in self._warehouse:
            return None
        return f"{self._warehouse.rstrip('/')}/{name.namespace}/{name.table}"


def _schema_of(table: Table) -> tuple[UUID, int]:
    """A recreated table may have the same schema id for another schema."""
    return table.metadata.table_uuid, table.metadata.current_schema_id

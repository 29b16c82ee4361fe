"""The tables of the lake as the mover knows them: made on first use, remembered between ticks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.core.clock import Clock, SystemClock
from frazil.core.errors import FrazilError, TableRefused
from frazil.core.lake_settings import MaintenanceSettings
from frazil.core.partitioning import Partitioning
from frazil.core.rows import ENVELOPE
from frazil.lake.commit import Committed, Moved, commit_moves, drop_files
from frazil.lake.embedded import check_own
from frazil.lake.expired_files import ExpiredFiles, Sweeper
from frazil.lake.files import TableFiles, metadata_for_tasks
from frazil.lake.handover import hand_over
from frazil.lake.last_row import is_last_row
from frazil.lake.reasons import reason
from frazil.lake.remembered import Remembered, named
from frazil.lake.store_errors import lake_error
from frazil.lake.tables import (
    MESSAGES_BY_DAY,
    TYPED_BY_DAY,
    UNPARTITIONED,
    TableName,
    add_columns,
    ensure_table,
    lacks,
    partitioned_by,
    shown_partitioning,
    table_columns,
)
from frazil.lake.token import TRANSFORMED, Token, check_no_earlier_log, ends, read_token
from frazil.lake.vended import renew_at_ms

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
        self._told: set[TableName] = set()
        self._snapshots_max = snapshots_max
        self._expired: dict[TableName, ExpiredFiles] = {}
        self._sweeper = Sweeper(catalog)

    def ensure(self, name: TableName, stored: pa.Schema, partitioning: Partitioning | None = None) -> None:
        """The table with all columns that the topic has now."""
        usual = MESSAGES_BY_DAY if stored.equals(ENVELOPE) else TYPED_BY_DAY
        self._ensure(name, table_columns(stored), usual, partitioning, is_result=False)

    def ensure_result(self, name: TableName, columns: pa.Schema, partitioning: Partitioning | None = None) -> None:
        """The table with all columns that a statement yields."""
        self._ensure(name, columns, UNPARTITIONED, partitioning, is_result=True)

    def token(self, name: TableName, log_id: str, partition: int) -> Token | None:
        """How far the table has a log; `TableRefused` if it has rows of another by the same topic and partition."""
        table = self._tables[name]
        check_no_earlier_log(table, log_id, partition)
        return read_token(table, log_id)

    def hand_over(self, name: TableName, former: str, end: int, log_id: str, wait: Callable[[int], None]) -> None:
        """Rows of a former log become those of the log that was renumbered to follow it, where they are not yet."""
        known = ends(self._tables[name])
        if former in known and log_id not in known:
            table = hand_over(self._catalog, name, former, end, log_id, wait)
            with self._guard:
                self._tables[name] = table

    def is_last_row(self, name: TableName, log_id: str, partition: int, row: pa.RecordBatch) -> bool:
        """Whether a row of the log is the one that the table got last of it."""
        try:
            return is_last_row(named(self._tables[name]), log_id, partition, row)
        except FrazilError:
            raise
        except Exception as error:
            raise lake_error(name, error, self._location(name) or "", self._catalog.properties) from error

    def metadata_json(self, name: TableName) -> str:
        """Of the table with the topic's names, by which the rows come."""
        return metadata_for_tasks(named(self._tables[name]).metadata)

    def io_properties(self, name: TableName) -> dict[str, str]:
        return {**self._io_properties, **self._tables[name].io.properties}

    def files_of(self, name: TableName) -> TableFiles:
        """What tasks need to write the table's files."""
        return TableFiles(self.metadata_json(name), self.io_properties(name))

    def commit(self, name: TableName, moves: Sequence[Moved], move_id: str, wait: Callable[[int], None]) -> Committed:
        """Commit, drop the files of what others have moved, and remember the table as it is now."""
        known = self._tables.get(name)
        columns = self._columns_of(name, known) if known is not None else None
        committed = commit_moves(self._catalog, name, moves, move_id, wait, known, self._snapshots_max, columns)
        drop_files(committed.table, committed.unused)
        self._note_expired(name, committed)
        with self._guard:
            self._tables[name] = committed.table
        return committed

    def _columns_of(self, name: TableName, table: Table) -> str | None:
        """The fields of the topic's columns, to be remembered; None if nothing was planned by the table as it is."""
        fits = self._fits.get(name)
        if fits is None or fits[:2] != _schema_of(table):
            return None
        return Remembered.of(table).with_those_of(named(table).schema(), fits[2]).text()

    def _note_expired(self, name: TableName, committed: Committed) -> None:
        """Files of removed snapshots are deleted later, and beside the commits."""
        table, now_ms = committed.table, committed.table.metadata.last_updated_ms
        files = self._expired.get(name)
        if files is None or not files.is_of(table):
            files = self._expired[name] = ExpiredFiles(table)
        files.note(committed.expired, now_ms)
        if files.claim_sweep(now_ms):
            self._sweeper.sweep(name, files, now_ms)

    def drop(self, name: TableName, files: Sequence[DataFile]) -> None:
        """Delete files that no commit was ever tried with; those of a table that was forgotten since become orphans."""
        table = self._tables.get(name)
        if table is not None:
            drop_files(table, files)

    def problem(self, name: TableName, error: Exception) -> FrazilError:
        """What keeps a table from being had or written, without secrets. It is never the error of another table."""
        if isinstance(error, FrazilError):
            return error
        table = self._tables.get(name)
        known = {**self._catalog.properties, **(table.io.properties if table is not None else {})}
        return TableRefused(f"{name} cannot be written ({reason(error, known)})", table=str(name))

    def remembers(self, name: TableName) -> bool:
        return name in self._tables

    def forget(self, name: TableName) -> None:
        with self._guard:
            self._tables.pop(name, None)

    def forget_all(self) -> None:
        with self._guard:
            self._tables.clear()

    def _ensure(
        self,
        name: TableName,
        columns: pa.Schema,
        usual: Partitioning,
        partitioning: Partitioning | None,
        *,
        is_result: bool,
    ) -> None:
        try:
            table = self._remembered(name)
            if table is None:
                table = ensure_table(self._catalog, name, columns, partitioning or usual, self._location(name))
                self._renew_at_ms[name] = renew_at_ms(table.io.properties, self._catalog.properties, self._now_ms())
                self._tell_of_partitioning(name, table, partitioning)
            check_own(self._catalog, table)
            if not is_result and TRANSFORMED in table.metadata.properties:
                raise TableRefused(
                    f"{name} holds the result of a statement, not the topic's rows; set `sql` for the topic again, "
                    "or move the table out of the way",
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
        """The table as it was seen last; None if its credentials are about to expire."""
        renew_at_ms = self._renew_at_ms.get(name)
        if renew_at_ms is not None and self._now_ms() >= renew_at_ms:
            self.forget(name)
        return self._tables.get(name)

    def _now_ms(self) -> int:
        return self._clock.now_us() // 1_000

    def _tell_of_partitioning(self, name: TableName, table: Table, wanted: Partitioning | None) -> None:
        """A table that is there already keeps its own partitioning; who asked for another is told, once."""
        has = partitioned_by(table)
        if wanted is not None and has != wanted.fields and name not in self._told:
            self._told.add(name)
            _log.warning(
                "%s: %s is partitioned by %s already and stays so, not by %s",
                wanted.setting, name, shown_partitioning(has), shown_partitioning(wanted.fields),
            )  # fmt: skip

    def _location(self, name: TableName) -> str | None:
        """`{warehouse}/{namespace}/{topic}`; where the warehouse is only a name to the catalog, it has to know."""
        if self._warehouse is None or "://" not in self._warehouse:
            return None
        return f"{self._warehouse.rstrip('/')}/{name.namespace}/{name.table}"


def _schema_of(table: Table) -> tuple[UUID, int]:
    """A table that is made again may have the same number for another schema."""
    return table.metadata.table_uuid, table.metadata.current_schema_id

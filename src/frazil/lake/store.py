"""The tables of the lake as the mover knows them: made on first use, remembered between ticks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.core.errors import FrazilError, TableRefused
from frazil.core.partitioning import Partitioning
from frazil.core.rows import ENVELOPE
from frazil.lake.commit import Committed, Moved, commit_moves, drop_files
from frazil.lake.files import TableFiles, metadata_for_tasks
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
from frazil.lake.token import TRANSFORMED, Token, earlier_log, ends, is_transformed, read_token

_log = logging.getLogger("frazil.lake")


class TableStore:
    def __init__(self, catalog: Catalog, warehouse: str | None, io_properties: dict[str, str]) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._io_properties = io_properties
        self._guard = threading.Lock()
        self._tables: dict[TableName, Table] = {}
        self._fits: dict[TableName, tuple[int, pa.Schema]] = {}
        self._told: set[TableName] = set()

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
        earlier = None if is_transformed(table) else earlier_log(table, log_id, partition)
        if earlier is not None:
            raise TableRefused(
                f"{name} holds the rows of an earlier topic of that name (log {earlier}, up to offset "
                f"{ends(table)[earlier]}), whose offsets would be doubled; rename or drop the table",
                table=str(name),
                log_id=earlier,
            )
        return read_token(table, log_id)

    def metadata_json(self, name: TableName) -> str:
        return metadata_for_tasks(self._tables[name].metadata)

    def io_properties(self, name: TableName) -> dict[str, str]:
        return {**self._io_properties, **self._tables[name].io.properties}

    def files_of(self, name: TableName) -> TableFiles:
        """What tasks need to write the table's files."""
        return TableFiles(self.metadata_json(name), self.io_properties(name))

    def commit(self, name: TableName, moves: Sequence[Moved], move_id: str, wait: Callable[[int], None]) -> Committed:
        """Commit, drop the files of what others have moved, and remember the table as it is now."""
        committed = commit_moves(self._catalog, name, moves, move_id, wait, self._tables.get(name))
        drop_files(committed.table, committed.unused)
        with self._guard:
            self._tables[name] = committed.table
        return committed

    def drop(self, name: TableName, files: Sequence[DataFile]) -> None:
        """Delete files that no commit was ever tried with."""
        drop_files(self._tables[name], files)

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
            table = self._tables.get(name)
            if table is None:
                table = ensure_table(self._catalog, name, columns, partitioning or usual, self._location(name))
                self._tell_of_partitioning(name, table, partitioning)
            if not is_result and TRANSFORMED in table.metadata.properties:
                raise TableRefused(
                    f"{name} holds the result of a statement, not the topic's rows; set `sql` for the topic again, "
                    "or move the table out of the way",
                    table=str(name),
                )
            if self._fits.get(name) != (table.metadata.current_schema_id, columns):
                if lacks(table, columns):
                    table = add_columns(self._catalog, table, columns)
                self._fits[name] = (table.metadata.current_schema_id, columns)
        except FrazilError:
            self.forget(name)
            raise
        except Exception as error:
            self.forget(name)
            raise lake_error(name, error, self._location(name) or "", self._catalog.properties) from error
        with self._guard:
            self._tables[name] = table

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

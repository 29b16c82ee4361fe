"""The tables of the lake as the mover knows them: made on first use, remembered between ticks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table

from frazil.core.rows import ENVELOPE
from frazil.lake.commit import Committed, Moved, commit_moves, drop_files
from frazil.lake.store_errors import lake_error
from frazil.lake.tables import DEFAULT_PARTITIONING, TYPED_PARTITIONING, TableName, add_columns, ensure_table
from frazil.lake.token import Token, read_token


class TableStore:
    def __init__(self, catalog: Catalog, warehouse: str | None, io_properties: dict[str, str]) -> None:
        self._catalog = catalog
        self._warehouse = warehouse
        self._io_properties = io_properties
        self._guard = threading.Lock()
        self._tables: dict[TableName, Table] = {}

    def ensure(self, name: TableName, stored: pa.Schema) -> None:
        """The table with all columns that the topic has now."""
        try:
            table = self._tables.get(name) or self._made(name, stored)
            if any(field.name not in table.schema().column_names for field in stored):
                table = add_columns(self._catalog, table, stored)
        except Exception as error:
            self.forget(name)
            raise lake_error(name, error, self._location(name) or "", self._catalog.properties) from error
        with self._guard:
            self._tables[name] = table

    def token(self, name: TableName, log_id: str) -> Token | None:
        return read_token(self._tables[name], log_id)

    def metadata_json(self, name: TableName) -> str:
        return self._tables[name].metadata.model_dump_json()

    def io_properties(self, name: TableName) -> dict[str, str]:
        return {**self._io_properties, **self._tables[name].io.properties}

    def commit(self, name: TableName, moves: Sequence[Moved], move_id: str, wait: Callable[[int], None]) -> Committed:
        """Commit, drop the files of what others have moved, and remember the table as it is now."""
        committed = commit_moves(self._catalog, name, moves, move_id, wait)
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

    def _made(self, name: TableName, stored: pa.Schema) -> Table:
        partitioning = DEFAULT_PARTITIONING if stored.equals(ENVELOPE) else TYPED_PARTITIONING
        return ensure_table(self._catalog, name, stored, partitioning, self._location(name))

    def _location(self, name: TableName) -> str | None:
        """`{warehouse}/{namespace}/{topic}`; where the warehouse is only a name to the catalog, it has to know."""
        if self._warehouse is None or "://" not in self._warehouse:
            return None
        return f"{self._warehouse.rstrip('/')}/{name.namespace}/{name.table}"

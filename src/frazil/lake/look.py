"""What a table says of its logs, for people to look at. Nothing is made."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.errors import TableRefused
from frazil.core.settings import Settings
from frazil.lake.catalog import catalog_properties, is_there, open_catalog
from frazil.lake.store_errors import lake_error
from frazil.lake.tables import TableName
from frazil.lake.token import read_token


@dataclass(frozen=True, slots=True)
class TableState:
    """How far a table has one log. `end` is None if it has none of it."""

    end: int | None
    snapshot_id: int | None
    committed_ms: int | None
    error: str | None = None


NOTHING_YET = TableState(None, None, None)


class TableLook:
    """One look: a table is loaded once, however many logs share it."""

    def __init__(self, settings: Settings) -> None:
        self._known = catalog_properties(settings)
        self._catalog = open_catalog(settings) if is_there(settings) else None
        self._tables: dict[TableName, Table | None] = {}

    def at(self, name: TableName, log_id: str) -> TableState:
        if name not in self._tables:
            self._tables[name] = self._load(name)
        table = self._tables[name]
        if table is None:
            return NOTHING_YET
        try:
            return _state(table, log_id)
        except TableRefused as error:
            return TableState(None, None, None, error.message)

    def _load(self, name: TableName) -> Table | None:
        if self._catalog is None:
            return None
        try:
            return self._catalog.load_table(name.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return None
        except Exception as error:
            raise lake_error(name, error, self._known.get("warehouse", ""), self._known) from error


def _state(table: Table, log_id: str) -> TableState:
    token = read_token(table, log_id)
    snapshot = table.current_snapshot()
    return TableState(
        None if token is None else token.end,
        None if snapshot is None else snapshot.snapshot_id,
        None if snapshot is None else snapshot.timestamp_ms,
    )

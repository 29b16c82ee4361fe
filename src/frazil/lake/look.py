"""What a table says of its logs, for people to look at. Nothing is made, and nothing is remembered."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from frazil.core.errors import LakeUnavailable, TableRefused
from frazil.core.settings import Settings
from frazil.lake.catalog import catalog_properties, is_there, open_catalog
from frazil.lake.reasons import reason
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
    def __init__(self, settings: Settings) -> None:
        self._known = catalog_properties(settings)
        self._catalog = open_catalog(settings) if is_there(settings) else None

    def at(self, name: TableName, log_id: str) -> TableState:
        if self._catalog is None:
            return NOTHING_YET
        try:
            return _state(self._catalog, name, log_id)
        except (NoSuchTableError, NoSuchNamespaceError):
            return NOTHING_YET
        except TableRefused as error:
            return TableState(None, None, None, error.message)
        except Exception as error:
            raise LakeUnavailable("catalog", reason(error, self._known)) from error


def _state(catalog: Catalog, name: TableName, log_id: str) -> TableState:
    table = catalog.load_table(name.identifier)
    token = read_token(table, log_id)
    snapshot = table.current_snapshot()
    return TableState(
        None if token is None else token.end,
        None if snapshot is None else snapshot.snapshot_id,
        None if snapshot is None else snapshot.timestamp_ms,
    )

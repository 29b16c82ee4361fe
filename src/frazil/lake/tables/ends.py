"""The committed end of a log in its table, read from the catalog each time, without caching.

A catalog may be restored from a backup, and a table dropped and recreated, while a process runs. So database
connections are not kept: a connection to a replaced SQLite file would still show the old one.
"""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.lake.catalogs.embedded import check_own
from frazil.lake.catalogs.opening import catalog_exists, catalog_properties, open_catalog
from frazil.lake.files.store_errors import lake_error
from frazil.lake.tables.last_row import is_last_row
from frazil.lake.tables.schema import table_of
from frazil.lake.tables.token import read_token


class CommittedEnds:
    """For one thread at a time."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._known = catalog_properties(settings)
        self._catalog: Catalog | None = None
        self._looked: Table | None = None

    def end(self, topic: TopicName, log_id: str) -> int:
        """Return the offset up to which the topic's table holds exactly this log; 0 if there is no table, or none of
        it.

        Raises `LakeUnavailable` or `TableRefused` if that cannot be determined.
        """
        name = table_of(topic)[0]
        if not self._is_there():
            self.close()
            return 0
        try:
            table = self._opened().load_table(name.identifier)
        except (NoSuchTableError, NoSuchNamespaceError):
            return 0
        except FrazilError:
            raise
        except Exception as error:
            self.close()
            raise lake_error(name, error, self._known.get("warehouse", ""), self._known) from error
        check_own(table.catalog, table)
        token = read_token(table, log_id)
        self._looked = table
        return 0 if token is None else token.end

    def continues(self, topic: TopicName, log_id: str, row: pa.RecordBatch) -> bool:
        """Whether the log's `row` is the last one that the table, as just loaded, got of it."""
        name, partition = table_of(topic)
        assert self._looked is not None
        try:
            return is_last_row(self._looked, log_id, partition, row)
        except FrazilError:
            raise
        except Exception as error:
            raise lake_error(name, error, self._known.get("warehouse", ""), self._known) from error

    def table(self, topic: TopicName) -> str:
        return str(table_of(topic)[0])

    def close(self) -> None:
        catalog, self._catalog = self._catalog, None
        if isinstance(catalog, SqlCatalog):
            catalog.engine.dispose()

    def _is_there(self) -> bool:
        """Whether the catalog exists. Opening would create an SQLite file, which a read-only check must not do."""
        parts = urlsplit(self._known.get("uri", ""))
        if self._known.get("type") != "sql" or not parts.scheme.startswith("sqlite"):
            return catalog_exists(self._settings)
        return parts.path not in ("", "/:memory:") and Path(parts.path.removeprefix("/")).exists()

    def _opened(self) -> Catalog:
        if isinstance(self._catalog, SqlCatalog):
            self._catalog.engine.dispose()
        if self._catalog is None:
            self._catalog = open_catalog(self._settings)
        return self._catalog

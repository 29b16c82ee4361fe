"""A SQL catalog that several processes may open for the first time at once.

PyIceberg looks whether the catalog's tables exist, then creates them. Of two processes that both found none, one is
refused by the database: "table already exists".
"""

from __future__ import annotations

from pyiceberg.catalog.sql import SqlCatalog, SqlCatalogBaseTable
from sqlalchemy import inspect
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError


class SharedSqlCatalog(SqlCatalog):
    def create_tables(self) -> None:
        """Create the missing tables. A refusal counts only if no other process has created one of them meanwhile."""
        missing = self._missing_tables()
        while missing:
            try:
                super().create_tables()
            except (IntegrityError, OperationalError, ProgrammingError):
                before, missing = missing, self._missing_tables()
                if missing == before:
                    raise
            else:
                return

    def _missing_tables(self) -> set[str]:
        return set(SqlCatalogBaseTable.metadata.tables) - set(inspect(self.engine).get_table_names())

"""The tables of a topic of telemetry as they are at one time, with their ends, for a check of their rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError
from pyiceberg.table import Table

from frazil.core.errors import FrazilError, LakeUnavailable
from frazil.core.offsets import OffsetRange
from frazil.lake.catalogs.error_text import reason
from frazil.lake.read.file_rows import FileRows
from frazil.lake.read.offset_files import BEYOND, OffsetFile, plan_all
from frazil.lake.tables.field_ids import named
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import derived_ends, is_transformed, read_token, row_count
from frazil.lake.tables.written import Writings, written_of


@dataclass(frozen=True, slots=True)
class DerivedTable:
    """A table, and what it says of one log."""

    name: str
    table: Table
    """With the names of columns that rows have."""
    loaded: Table
    """As the catalog has it."""
    partition: int
    token: int
    counted: int | None
    """How many rows it ever got of the log; None if that is not known."""
    files: list[OffsetFile]
    written: Writings

    @property
    def reach(self) -> int:
        """Return the end of the offsets in its files, which should not be beyond its token."""
        known = [file.high for file in self.files if file.high < BEYOND]
        return max([self.token, *known])

    def columns(self) -> list[str]:
        return list(self.table.schema().column_names)

    def rows(self, columns: list[str], window: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield these columns, of rows in a window of offsets, in any order."""
        reader = FileRows(self.table, columns, self.partition)
        for file in self.files:
            if file.low < window.end and file.high > window.start:
                yield from reader.batches(file, window)


@dataclass(frozen=True, slots=True)
class DerivedTables:
    own: DerivedTable | None
    others: Mapping[str, DerivedTable]
    recorded: Mapping[str, int]
    """Up to where others should have rows at least, as the own table recorded it."""


def derived_tables(catalog: Catalog, own: TableName, log_id: str, partition: int, others: list[str]) -> DerivedTables:
    """Load the own table first: what it has, the others have too."""

    def load(name: str) -> DerivedTable | None:
        return load_derived(catalog, TableName(own.namespace, name), log_id, partition)

    first = load(own.table)
    if first is None:
        return DerivedTables(None, {}, {})
    found = {name: table for name in others if (table := load(name)) is not None}
    return DerivedTables(first, found, derived_ends(first.table, log_id))


def is_derived(table: DerivedTable) -> bool:
    """Whether a topic's own table holds derived rows, not the result of a statement."""
    return is_transformed(table.table) and table.counted is not None


def snapshot_of(table: DerivedTable | None) -> int | None:
    return None if table is None else table.table.metadata.current_snapshot_id


def load_derived(
    catalog: Catalog, name: TableName, log_id: str, partition: int, *, checks_token: bool = True
) -> DerivedTable | None:
    """Load one table; None if there is none. Without a check, the token is 0, as for a table that was rolled back."""
    try:
        loaded = catalog.load_table(name.identifier)
        table = named(loaded)
        token = read_token(table, log_id) if checks_token else None
        files = plan_all(table, partition)
    except (NoSuchTableError, NoSuchNamespaceError):
        return None
    except FrazilError:
        raise
    except Exception as error:
        why = reason(error, catalog.properties)
        raise LakeUnavailable("catalog", f"{name} could not be loaded: {why}") from error
    end = 0 if token is None else token.end
    counted, written = row_count(table, log_id), written_of(table, log_id)
    return DerivedTable(name.table, table, loaded, partition, end, counted, files, written)

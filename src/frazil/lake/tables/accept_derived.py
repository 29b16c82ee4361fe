"""Accept what the tables of a topic of telemetry lost: each continues from what it has."""

from __future__ import annotations

from pyiceberg.catalog import Catalog

from frazil.core.errors import TableRolledBack
from frazil.core.offsets import OffsetRange
from frazil.lake.read.derived_tables import DerivedTable, load_derived
from frazil.lake.read.offset_files import BEYOND
from frazil.lake.tables.accept import accept
from frazil.lake.tables.schema import TableName
from frazil.lake.tables.token import count_key, derived_ends, derived_key, is_transformed


def accepted_derived(catalog: Catalog, own: TableName, log_id: str, partition: int, move_id: str) -> dict[str, str]:
    """Let derived tables that were rolled back continue; returns the entries with which the own table is accepted.

    They are how many rows it has, and up to where each derived table has rows now.
    """
    mine = _as_it_is(catalog, own, log_id, partition)
    if mine is None or not is_transformed(mine.table):
        return {}
    entries = {count_key(log_id): str(_rows_of(mine))}
    for name, recorded in derived_ends(mine.table, log_id).items():
        table = TableName(own.namespace, name)
        try:
            found = load_derived(catalog, table, log_id, partition)
        except TableRolledBack:
            there = _as_it_is(catalog, table, log_id, partition)
            counted = {} if there is None else {count_key(log_id): str(_rows_of(there))}
            accept(catalog, table, log_id, 0, move_id, partition=partition, entries=counted)
            found = load_derived(catalog, table, log_id, partition)
        has = 0 if found is None else found.token
        if has < recorded:
            entries[derived_key(log_id, name)] = str(has)
    return entries


def _as_it_is(catalog: Catalog, name: TableName, log_id: str, partition: int) -> DerivedTable | None:
    """Load a table that may have been rolled back."""
    return load_derived(catalog, name, log_id, partition, checks_token=False)


def _rows_of(table: DerivedTable) -> int:
    return sum(batch.num_rows for batch in table.rows([], OffsetRange(0, BEYOND)))

"""The tables of a topic of telemetry: a request becomes rows of the tables of its signal, or a row of errors."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from frazil.core.partitioning import PartitionField, Partitioning
from frazil.core.rows import APPEND_TIME, OFFSET
from frazil.lake.tables.schema import TYPED_BY_DAY, TableLayout, TableName
from frazil.telemetry.decode import decode_parts
from frazil.telemetry.schemas import Lifted, errors_table, tables_of
from frazil.telemetry.signals import Signal

BY_DAY = Partitioning("", (PartitionField("timestamp", "day"),))
SORTED_BY = ("service_name", "timestamp")


@dataclass(frozen=True)
class TelemetryTables:
    """`Derived` tables of a topic of requests. The topic's own table has the name of the signal."""

    signal: Signal
    namespace: str
    lifted: tuple[Lifted, ...] = ()
    partitioning: Partitioning | None = None
    """Of all tables but that of errors, which has no time of its own; by default, by day of event time."""

    @property
    def tables(self) -> Mapping[TableName, TableLayout]:
        return _layouts(self)

    @property
    def errors(self) -> TableName:
        return self._name(errors_table(self.signal))

    def written(self, table: TableName) -> tuple[str, ...]:
        return _written(self, table.table)

    def parts(self, rows: pa.RecordBatch, partition: int) -> Iterator[Mapping[TableName, pa.RecordBatch]]:
        requests, offsets, times = rows.column("request"), rows.column(OFFSET.name), rows.column(APPEND_TIME.name)
        for decoded in decode_parts(self.signal, requests, offsets, times, partition, self.lifted):
            yield {self._name(table): made for table, made in decoded.rows.items()} | {self.errors: decoded.errors}

    def _name(self, table: str) -> TableName:
        return TableName(self.namespace, table)


def _written(tables: TelemetryTables, table: str) -> tuple[str, ...]:
    """Return nothing for errors: their columns that a proof compares are always there."""
    if table == errors_table(tables.signal):
        return ()
    own = tables_of(tables.signal)[table].names
    lifted = tables_of(tables.signal, tables.lifted)[table].names[len(own) :]
    return (*own, *(str(one) for one in tables.lifted if one.column in lifted))


@functools.lru_cache(maxsize=16_384)
def _layouts(tables: TelemetryTables) -> Mapping[TableName, TableLayout]:
    """Raises `SchemaMismatch` for lifted attributes whose columns cannot be added."""
    by_event = tables.partitioning or BY_DAY
    return {
        TableName(tables.namespace, name): (
            TableLayout(columns, TYPED_BY_DAY)
            if name == errors_table(tables.signal)
            else TableLayout(columns, by_event, SORTED_BY)
        )
        for name, columns in tables_of(tables.signal, tables.lifted).items()
    }

"""Tables of telemetry in queries: the requests that are not in a table yet are decoded into its rows.

A topic of requests feeds several tables. The mover commits its own table, which has the name of the signal, after all
others, and none that gets no rows: so a table is complete up to its own token, and up to that of the topic's own table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from frazil.core.errors import DerivedTableBehind
from frazil.core.extras import needs
from frazil.core.rows import APPEND_TIME, OFFSET
from frazil.core.settings import Settings
from frazil.lake.files.widening import widened_rows, widened_schema
from frazil.lake.read.queryable import CommittedEnd, Queryable
from frazil.lake.tables.schema import TableName
from frazil.log.info import LogInfo
from frazil.node.query.log_rows import LogRows
from frazil.node.telemetry.directory import read_tenant
from frazil.node.telemetry.scopes import tenant_of_namespace
from frazil.telemetry.schemas import Lifted, LiftedFrom, errors_table, signal_of_table, tables_of
from frazil.telemetry.signals import Signal, signal_of

SLICE_BYTES_MAX = 1 << 20
"""Bytes of the requests that are decoded at once, unless it is a single one: the worst have 160 times as many rows."""


def own_table(name: TableName) -> TableName | None:
    """Return the table that has the name of the topic whose requests become rows of a table; None for a table whose
    name is not one of telemetry's."""
    signal = signal_of_table(name.table)
    return None if signal is None else TableName(name.namespace, signal.value)


def holds_requests(info: LogInfo) -> bool:
    return signal_of(info.topic, pa.ipc.read_schema(pa.py_buffer(info.stored_schema))) is not None


def lifted_of(settings: Settings, name: TableName) -> tuple[Lifted, ...]:
    """Return the lifted attributes of the tenant that a table belongs to, as they are stored now."""
    tenant = tenant_of_namespace(name.namespace)
    known = None if tenant is None else read_tenant(settings, tenant)
    found = () if known is None else known.lifted
    return tuple(Lifted(LiftedFrom(one.source), one.key, one.column, one.type) for one in found)


@dataclass(frozen=True, slots=True)
class RequestTopic:
    """A topic of requests, and what its own table says, unless that is the table that is asked for."""

    info: LogInfo
    own: TableName
    committed: CommittedEnd
    lifted: Sequence[Lifted]

    def rows(self, info: LogInfo, name: TableName, table: Queryable | None) -> LogRows:
        """Return the rows that the requests have in one of their tables and that it does not have yet.

        Raises `DerivedTableBehind` for a table that was dropped, replaced or rolled back: some rows would be missing.
        """
        signal = Signal(self.own.table)
        columns, end = widened_schema(tables_of(signal, self.lifted)[name.table]), self.committed.end
        token = 0 if table is None else table.held.by_log.get(info.log_id, 0)
        recorded = self.committed.derived.get(name.table, 0)
        if token < recorded:
            raise DerivedTableBehind(str(info.topic), str(name), str(self.own), token, recorded)
        end = max(end, token)
        if table is not None:
            if info.log_id in table.held.by_log:
                table.columns.check(tables_of(signal)[name.table].names)
            columns = table.columns.in_table_names(columns)

        def converted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            found = (rows for batch in batches for rows in _decoded(batch, name.table, signal, self.lifted))
            return map(widened_rows, found)

        return LogRows(info, columns, end, converted)


def _decoded(batch: pa.RecordBatch, table: str, signal: Signal, lifted: Sequence[Lifted]) -> Iterator[pa.RecordBatch]:
    with needs():
        from frazil.telemetry.decode import decode_parts
    for piece in _slices(batch):
        requests, offsets, times = (piece.column(name) for name in ("request", OFFSET.name, APPEND_TIME.name))
        for part in decode_parts(signal, requests, offsets, times, lifted=lifted):
            rows = part.errors if table == errors_table(signal) else part.rows.get(table)
            if rows is not None and rows.num_rows:
                yield rows


def _slices(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    sizes = pc.binary_length(batch.column("request")).to_pylist()
    start = size = 0
    for at, one in enumerate(sizes):
        if size and size + one > SLICE_BYTES_MAX:
            yield batch.slice(start, at - start)
            start, size = at, 0
        size += one
    if start < batch.num_rows:
        yield batch.slice(start)

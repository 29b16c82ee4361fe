"""The rows of a log that its table lacks, in the columns of the table.

Of most topics they are the rows of the log. Of a topic of telemetry each row is a request, and what a table has of it
is decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from frazil.core.errors import RowsMissing, TableAhead
from frazil.core.offsets import OffsetRange
from frazil.lake.files.widening import widened_rows
from frazil.lake.read.queryable import Queryable
from frazil.lake.tables.schema import TableName, table_columns, table_of, table_rows
from frazil.lake.tables.topic_columns import relabelled
from frazil.log.info import LogInfo
from frazil.node.tiers.logs import LogView

Converted = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class LogRows:
    """A log as a part of a table's relation."""

    info: LogInfo
    columns: pa.Schema
    """In the table's form, by the table's names."""
    end: int
    """Where the rows begin that the table does not have."""
    converted: Converted
    """Makes rows of the table, in the form and order of `columns`, of rows as read from the log."""

    def adds_to(self, table: Queryable | None) -> bool:
        """Whether the log has rows or columns that the table lacks: without them DuckDB counts by file footers."""
        if table is None or self.end < self.info.durable_end:
            return True
        return not set(self.columns.names) <= set(table.schema.names)

    def read(self, logs: LogView, name: TableName, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Return the rows, in columns of these names. Raises `RowsMissing` if neither table nor log has some."""
        info, end = self.info, self.end
        if end < info.held_from:
            info.check_objects()
        if end and info.held_from > end:
            raise RowsMissing(str(info.topic), str(name), end, info.held_from)
        start = max(end, info.held_from)
        if start >= info.durable_end:
            return iter(())
        batches = logs.read(info, OffsetRange(start, info.durable_end))
        return (relabelled(rows, schema) for rows in self.converted(batches))


def plain_rows(info: LogInfo, table: Queryable | None) -> LogRows:
    """Return the rows of a topic whose table has them as they are."""
    stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
    columns = table_columns(stored)
    end = 0 if table is None else table.held.by_log.get(info.log_id, 0)
    if table is not None:
        if info.log_id in table.held.by_log:
            table.columns.check(stored.names)
        columns = table.columns.in_table_names(columns)
    partition = table_of(info.topic)[1]

    def converted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return (widened_rows(table_rows(rows, partition)) for rows in batches)

    return LogRows(info, columns, end, converted)


def check_not_ahead(
    table: TableName, ends: Mapping[str, int], logs: Collection[LogInfo], again: Callable[[], Mapping[int, LogInfo]]
) -> None:
    """Raise `TableAhead` for a log that was set back behind the end, by log id, that a table has of it.

    Rows may also have been published and moved since the logs were asked, so these are asked `again`.
    """
    behind = [info for info in logs if ends.get(info.log_id, 0) > info.durable_end]
    now = {info.log_id: info.durable_end for info in again().values()} if behind else {}
    for info in behind:
        end = ends[info.log_id]
        if now.get(info.log_id, end) < end:
            raise TableAhead(str(info.topic), str(table), end, now[info.log_id])

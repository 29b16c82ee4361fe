"""Read the rows of one data file by field ids, without deleted rows, one batch at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.io.pyarrow import ArrowScan, pyarrow_to_schema
from pyiceberg.manifest import FileFormat
from pyiceberg.schema import Schema, prune_columns
from pyiceberg.table import Table
from pyiceberg.types import ListType, MapType

from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.lake.pyiceberg_private import column_constants, to_table_schema
from frazil.lake.read.offset_files import OffsetFile, bounds
from frazil.lake.tables.schema import PARTITION

BATCH_BYTES = 8 * 1024 * 1024
BATCH_ROWS_MIN, BATCH_ROWS_MAX = 64, 65_536


class FileRows:
    """Reads files of one table: the requested columns, of one partition, in a range of offsets."""

    def __init__(self, table: Table, columns: Sequence[str], partition: int) -> None:
        self._table = table
        self._partition = partition
        self._partition_column = table.schema().find_field(PARTITION.name)
        self._columns = tuple(columns)
        self._lean = table.schema().select(OFFSET.name, *self._columns)
        self._full = table.schema().select(OFFSET.name, PARTITION.name, *self._columns)

    def batches(self, file: OffsetFile, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        """Yield `_offset` and the columns, in file order; batches may be empty."""
        mixed = bounds(file.task.file, self._partition_column) != (self._partition, self._partition)
        schema = self._full if mixed else self._lean
        if file.task.delete_files or file.task.file.file_format is not FileFormat.PARQUET:
            scan = ArrowScan(self._table.metadata, self._table.io, schema, AlwaysTrue())
            found = scan.to_record_batches([file.task])
        else:
            found = self._parquet(file, schema, wanted)
        names = [OFFSET.name, *self._columns]
        for batch in found:
            rows = batch
            if mixed:
                rows = rows.filter(pc.equal(rows.column(PARTITION.name), self._partition))
            rows = rows.select(names)
            yield rows if _lies_within(rows, wanted) else rows.filter(_inside(rows, wanted))

    def _parquet(self, file: OffsetFile, schema: Schema, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        metadata = self._table.metadata
        with self._table.io.new_input(file.path).open() as source:
            parquet = pq.ParquetFile(source, pre_buffer=True)
            file_schema = pyarrow_to_schema(
                parquet.schema_arrow,
                metadata.name_mapping(),
                downcast_ns_timestamp_to_us=True,
                format_version=metadata.format_version,
            )
            spec = metadata.specs().get(file.task.file.spec_id)
            constants = column_constants(file.task.file, schema, metadata.schema(), spec, file_schema.field_ids)
            kept = prune_columns(file_schema, _leaves(schema), select_full_types=False)
            names = [column.name for column in kept.columns]
            for group in _groups(parquet, file_schema, schema, wanted):
                size = _batch_rows(parquet, group)
                for batch in parquet.iter_batches(size, row_groups=[group], columns=names):
                    yield to_table_schema(schema, kept, batch, constants)


def _leaves(schema: Schema) -> set[int]:
    """Project like PyIceberg: maps and lists are selected by their members."""
    return {
        number for number in schema.field_ids if not isinstance(schema.find_type(number), MapType | ListType)
    }  # fmt: skip


def _groups(parquet: pq.ParquetFile, file_schema: Schema, schema: Schema, wanted: OffsetRange) -> Iterator[int]:
    """Return the row groups that may hold some of the range, by their statistics."""
    name = file_schema.find_column_name(schema.find_field(OFFSET.name).field_id)
    at = next((at for at, column in enumerate(parquet.schema.names) if column == name), None)
    for group in range(parquet.metadata.num_row_groups):
        statistics = None if at is None else parquet.metadata.row_group(group).column(at).statistics
        if statistics is None or not statistics.has_min_max or _meets(statistics.min, statistics.max, wanted):
            yield group


def _meets(least: int, greatest: int, wanted: OffsetRange) -> bool:
    return least < wanted.end and greatest >= wanted.start


def _batch_rows(parquet: pq.ParquetFile, group: int) -> int:
    """Return the number of rows for a batch of about `BATCH_BYTES`."""
    metadata = parquet.metadata.row_group(group)
    each = max(1, metadata.total_byte_size // max(1, metadata.num_rows))
    return int(min(BATCH_ROWS_MAX, max(BATCH_ROWS_MIN, BATCH_BYTES // each)))


def _lies_within(rows: pa.RecordBatch, wanted: OffsetRange) -> bool:
    if not rows.num_rows:
        return True
    extent = pc.min_max(rows.column(0))
    return bool(extent["min"].as_py() >= wanted.start and extent["max"].as_py() < wanted.end)


def _inside(rows: pa.RecordBatch, wanted: OffsetRange) -> pa.Array:
    offsets = rows.column(0)
    return pc.and_(pc.greater_equal(offsets, wanted.start), pc.less(offsets, wanted.end))

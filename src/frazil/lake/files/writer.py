"""Data files: Arrow rows written as Parquet to a table's location, not yet part of the table."""

from __future__ import annotations

import functools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.io.pyarrow import pyarrow_to_schema, schema_to_pyarrow, write_file
from pyiceberg.manifest import DATA_FILE_TYPE, DataFile
from pyiceberg.partitioning import PartitionFieldValue, PartitionKey
from pyiceberg.table import WriteTask
from pyiceberg.table.metadata import TableMetadata, TableMetadataUtil

from frazil.lake.files.locations import with_short_locations
from frazil.lake.files.nulls import keep_nulls
from frazil.lake.files.row_sorting import sorted_rows, sorting_columns
from frazil.lake.files.store_errors import store_error
from frazil.lake.pyiceberg_private import written_by_partition

__all__ = [
    "DataFile",
    "DataFileWriter",
    "TableFiles",
    "WriterGroup",
    "metadata_for_tasks",
    "pieces",
    "write_data_files",
]


Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What a task needs to write files of a table. It contains secrets: send it to tasks, never to a log."""

    metadata: str
    io_properties: dict[str, str] = field(repr=False)


class DataFileWriter:
    """Buffers rows and writes them once they reach a size, so that no more than that is held."""

    def __init__(self, table: TableFiles, flush_bytes: int) -> None:
        self._table = table
        self._flush_bytes = flush_bytes
        self._gathered: list[pa.RecordBatch] = []
        self._gathered_bytes = 0
        self._files: list[DataFile] = []
        self.rows = 0

    @property
    def gathered_bytes(self) -> int:
        return self._gathered_bytes

    def add(self, rows: pa.RecordBatch) -> None:
        for piece in pieces(rows, self._flush_bytes):
            if self._gathered_bytes + piece.nbytes > self._flush_bytes:
                self.flush()
            self._gathered.append(piece)
            self._gathered_bytes += piece.nbytes
            self.rows += piece.num_rows

    def close(self) -> tuple[DataFile, ...]:
        """Return all files, including the remaining buffered rows; none if there were no rows."""
        self.flush()
        return tuple(self._files)

    def flush(self) -> None:
        if not self._gathered:
            return
        table = pa.Table.from_batches(self._gathered)
        self._gathered, self._gathered_bytes = [], 0
        self._files += write_data_files(self._table.metadata, self._table.io_properties, table, uuid.uuid4())


class WriterGroup(Generic[Key]):
    """Writers of several tables that hold no more rows together than one may: the fullest is written first."""

    def __init__(self, tables: Mapping[Key, TableFiles], flush_bytes: int) -> None:
        self._flush_bytes = flush_bytes
        self._writers = {key: DataFileWriter(files, flush_bytes) for key, files in tables.items()}

    def add(self, key: Key, rows: pa.RecordBatch) -> None:
        for piece in pieces(rows, self._flush_bytes):
            while (held := sum(one.gathered_bytes for one in self._writers.values())) and (
                held + piece.nbytes > self._flush_bytes
            ):
                max(self._writers.values(), key=lambda one: one.gathered_bytes).flush()
            self._writers[key].add(piece)

    def rows(self, key: Key) -> int:
        return self._writers[key].rows

    def close(self, key: Key) -> tuple[DataFile, ...]:
        return self._writers[key].close()


def pieces(rows: pa.RecordBatch, bytes_max: int) -> Iterator[pa.RecordBatch]:
    """Split the rows into slices of a limited size, or of one row if that is larger."""
    if rows.num_rows == 0:
        return
    if rows.num_rows == 1 or rows.nbytes <= bytes_max:
        yield rows
        return
    half = rows.num_rows // 2
    yield from pieces(rows.slice(0, half), bytes_max)
    yield from pieces(rows.slice(half), bytes_max)


keep_nulls()

METADATA_KEPT_MAX = 64
_SORT_ORDER_ID = [field.name for field in DATA_FILE_TYPE[2].fields].index("sort_order_id")


def write_data_files(
    table_metadata: str, io_properties: Mapping[str, str], rows: pa.Table, write_id: uuid.UUID
) -> list[DataFile]:
    """Write rows with the table's schema, partitioning and properties; returns what a commit needs."""
    metadata = _parsed(table_metadata)
    io = load_file_io(dict(io_properties), metadata.location)
    order = sorting_columns(metadata, rows.schema)
    try:
        files = list(_written(metadata, sorted_rows(rows, order), io, write_id))
    except OSError as error:
        raise store_error(error, metadata.location, io_properties) from None
    for file in files:
        file.spec_id = metadata.default_spec_id  # the table's spec may change before the commit
        if order:
            file[_SORT_ORDER_ID] = metadata.default_sort_order_id
    return files


@functools.lru_cache(maxsize=METADATA_KEPT_MAX)
def _parsed(table_metadata: str) -> TableMetadata:
    """A task writes several files of a table, and a worker many tasks: parsing takes as long as a small file."""
    metadata = TableMetadataUtil.parse_raw(table_metadata)
    return metadata.model_copy(update={"properties": with_short_locations(metadata.properties)})


def _written(metadata: TableMetadata, rows: pa.Table, io: FileIO, write_id: uuid.UUID) -> Iterable[DataFile]:
    """Write as PyIceberg does, but without a search for partitions if all rows are in one, as in most ranges."""
    rows = _with_partition_columns(metadata, rows)
    key = _only_partition(metadata, rows)
    if key is None:
        return written_by_partition(metadata, rows, io, write_id)
    mapping, version = metadata.schema().name_mapping, metadata.format_version
    schema = pyarrow_to_schema(rows.schema, name_mapping=mapping, format_version=version)
    return write_file(io, metadata, iter([WriteTask(write_id, 0, schema, rows.to_batches(), partition_key=key)]))


def _with_partition_columns(metadata: TableMetadata, rows: pa.Table) -> pa.Table:
    """Add each partition column in a type that transforms accept.

    Another engine may partition by a column that it added itself: the rows have no value for it.
    """
    schema = metadata.schema()
    for each in metadata.spec().fields:
        source, name = schema.find_field(each.source_id), schema.find_column_name(each.source_id)
        if name != source.name:  # a nested field is within a column of its own
            continue
        kind = schema_to_pyarrow(source.field_type, include_field_ids=False)
        at = rows.schema.get_field_index(name)
        if at < 0:
            rows = rows.append_column(name, pa.nulls(rows.num_rows, kind))
        elif _has_other_form(rows.schema.field(at).type, kind):
            rows = rows.set_column(at, rows.schema.field(at).with_type(kind), rows.column(at).cast(kind))
    return rows


def _has_other_form(kind: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the type needs conversion: transforms know Iceberg's numbers and times only, no short ones or
    milliseconds.
    """
    return bool((pa.types.is_integer(kind) or pa.types.is_timestamp(kind)) and kind != wanted)


def _only_partition(metadata: TableMetadata, rows: pa.Table) -> PartitionKey | None:
    """Return the partition of all rows, if the minimum and maximum of their values show that there is only one."""
    spec, schema, values = metadata.spec(), metadata.schema(), []
    for each in spec.fields:
        source, name = schema.find_field(each.source_id), schema.find_column_name(each.source_id)
        if not each.transform.preserves_order or name not in rows.schema.names or rows[name].null_count:
            return None
        extent = pc.min_max(rows[name])
        ends = pa.array([extent["min"], extent["max"]], rows.schema.field(name).type)
        low, high = each.transform.pyarrow_transform(source.field_type)(ends).to_pylist()
        if low != high:
            return None
        values.append(PartitionFieldValue(each, low))
    return PartitionKey(values, spec, schema) if values else None


def metadata_for_tasks(metadata: TableMetadata, *, every_spec: bool = False) -> str:
    """Strip the history from the metadata; otherwise each task would get the whole metadata of a long-lived table.

    With `every_spec`, for readers: files may use any of the table's partition specs.
    """
    present = {
        "schemas": [metadata.schema()],
        "partition_specs": metadata.partition_specs if every_spec else [metadata.spec()],
        "properties": {name: value for name, value in metadata.properties.items() if not name.startswith("frazil.")},
        "current_snapshot_id": None,
        "snapshots": [],
        "snapshot_log": [],
        "metadata_log": [],
        "refs": {},
        "statistics": [],
        "partition_statistics": [],
    }
    return metadata.model_copy(update=present).model_dump_json()

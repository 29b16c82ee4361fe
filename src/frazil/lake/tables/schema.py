"""The table of a topic: its name, its columns, and its creation."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
    ValidationError,
)
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionSpec
from pyiceberg.partitioning import PartitionField as SpecField
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER, NullOrder, SortDirection, SortField, SortOrder
from pyiceberg.table.update import AssertCreate
from pyiceberg.transforms import IdentityTransform, parse_transform
from pyiceberg.types import IcebergType, NestedField

from frazil.core.errors import InvalidSettings, TableRefused
from frazil.core.names import TopicName
from frazil.core.partitioning import PartitionField, Partitioning
from frazil.core.rows import OFFSET
from frazil.lake.files.widening import widened_schema
from frazil.lake.pyiceberg_private import schema_without_ids, staged
from frazil.lake.tables.field_ids import in_table_names, named

PARTITION = pa.field("_topic_partition", pa.int32(), nullable=False)

MESSAGES_BY_DAY = Partitioning("", (PartitionField("_publish_time", "day"),))
TYPED_BY_DAY = Partitioning("", (PartitionField("_append_time", "day"),))
UNPARTITIONED = Partitioning("", ())

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "write.parquet.dict-size-bytes": str(128 * 1024),
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "8",
    "commit.retry.num-retries": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Keep few metadata files, however many commits. Compactions retry more often than the default four times, because they
compete with the mover's commits."""

METRICS = {"_payload": {"write.metadata.metrics.column._payload": "counts"}}
"""Per column: no statistics for bytes that nobody filters by. Iceberg's own library refuses to change the properties of
a table that name a missing column."""


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    namespace: str
    table: str

    @property
    def identifier(self) -> tuple[str, str]:
        return (self.namespace, self.table)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}"


@dataclass(frozen=True, slots=True)
class TableLayout:
    """The columns of a table, its partitioning, and the columns that the rows of each file are sorted by."""

    columns: pa.Schema
    partitioning: Partitioning = UNPARTITIONED
    sorted_by: tuple[str, ...] = ()


def table_of(topic: TopicName) -> tuple[TableName, int]:
    """Return the table of a topic, and its partition number: partitions `…-part-N` of one topic share a table."""
    base, number = topic.partition_of()
    return TableName(base.namespace, base.topic), number


def topic_of(name: TableName, partition: int) -> TopicName:
    """Return the topic of a table, or its partition with that number; number 0 is a topic without partitions."""
    return TopicName(name.namespace, f"{name.table}-part-{partition}" if partition else name.table)


def table_rows(rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Convert rows as read from the log (`_offset` first) to the table's form."""
    numbers = pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
    return rows.add_column(1, PARTITION, numbers)


def table_columns(stored: pa.Schema) -> pa.Schema:
    """Return the columns of a table that holds a topic's plain rows."""
    return widened_schema(pa.schema([OFFSET, PARTITION, *stored]))


def table_schema(columns: pa.Schema) -> Schema:
    return assign_fresh_schema_ids(schema_without_ids(columns))


def ensure_table(
    catalog: Catalog, name: TableName, layout: TableLayout, location: str | None, creating: Callable[[], None]
) -> Table:
    """Return the table, created with its namespace if needed. On a race, one creates it and both get it.

    `creating` is called before it is created."""
    try:
        return catalog.load_table(name.identifier)
    except NoSuchTableError:
        creating()
    schema = table_schema(layout.columns)
    spec, order = partition_spec(schema, layout.partitioning), sort_order(schema, layout.sorted_by)
    _ensure_namespace(catalog, name.namespace)
    with contextlib.suppress(TableAlreadyExistsError, CommitFailedException):
        _create(catalog, name, schema, location, spec, order)
    return catalog.load_table(name.identifier)


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    """On a race, some catalogs report a broken key to the second creator, not an existing namespace."""
    try:
        catalog.create_namespace((namespace,))
    except NamespaceAlreadyExistsError:
        pass
    except Exception:
        if not catalog.namespace_exists((namespace,)):
            raise


def _create(
    catalog: Catalog, name: TableName, schema: Schema, location: str | None, spec: PartitionSpec, order: SortOrder
) -> None:
    """Create the table with a first, empty snapshot in the same commit.

    So every commit of rows has a parent to be pinned to. "There is no snapshot yet" is insufficient: Nessie does not
    check it, and treats a second first commit as the table's whole content.
    """
    properties = dict(TABLE_PROPERTIES)
    for column in METRICS.keys() & set(schema.column_names):
        properties |= METRICS[column]
    transaction = catalog.create_table_transaction(name.identifier, schema, location, spec, order, properties)
    with transaction.update_snapshot().fast_append():
        pass
    table, updates = staged(transaction)
    catalog.commit_table(table, (AssertCreate(),), updates)


def lacks(table: Table, columns: pa.Schema) -> bool:
    """Whether the table must change before it can hold such rows; raises `TableRefused` if no change helps."""
    schema = table_schema(columns)
    there, wanted = named(table).schema().as_arrow(), schema.as_arrow()
    changes = False
    for field in wanted:
        if field.name not in there.names:
            changes = True
        elif field.type != there.field(field.name).type and not _widens(field.type, there.field(field.name).type):
            if not _may_become(there.field(field.name).type, field.type):
                raise _misfit(table, field.name, schema.find_type(field.name))
            changes = True
    for field in there:
        if field.nullable:
            continue
        if field.name not in wanted.names:
            raise TableRefused(
                f"column {field.name} of {_shown(table)} may not be null, and the rows lack it; "
                "let it be null there, or move the table away",
                column=field.name,
            )
        changes = changes or wanted.field(field.name).nullable
    return changes


def add_columns(catalog: Catalog, table: Table, columns: pa.Schema) -> Table:
    """Return the table with the missing columns, wider types, and nullable columns where rows may be null; a concurrent
    change by others is an error."""
    table = catalog.load_table(table.name())  # its schema may have changed
    there = named(table).schema()
    optional = [field if field.name in there.column_names else field.with_nullable(True) for field in columns]
    wider = table_schema(pa.schema(optional))
    try:
        with table.update_schema() as update:
            update.union_by_name(in_table_names(_without_narrower(there, wider), there, table.schema()))
    except (ValueError, ValidationError) as error:
        raise TableRefused(f"{_shown(table)} cannot take the rows: {error}; cast the column, or rename it") from error
    return catalog.load_table(table.name())


def _without_narrower(there: Schema, wanted: Schema) -> Schema:
    """Keep the table's own column if it is wide enough: a narrower one would count as a change."""
    kept = []
    for field in wanted.fields:
        own = there.find_field(field.name) if field.name in there.column_names else None
        if own is not None and not _may_become(_arrow(own), _arrow(field)):
            field = own if field.required else own.model_copy(update={"required": False})  # noqa: PLW2901
        kept.append(field)
    return Schema(*kept)


def _arrow(field: NestedField) -> pa.DataType:
    return Schema(field).as_arrow().field(0).type


def _widens(narrow: pa.DataType, wide: pa.DataType) -> bool:
    """Whether values of one type fit unchanged in a column of the other."""
    if pa.types.is_integer(narrow) and pa.types.is_integer(wide):
        return bool(narrow.bit_width < wide.bit_width)
    if pa.types.is_floating(narrow) and pa.types.is_floating(wide):
        return bool(narrow.bit_width < wide.bit_width)
    if pa.types.is_decimal(narrow) and pa.types.is_decimal(wide):
        return bool(narrow.scale == wide.scale and narrow.precision < wide.precision)
    return False


def _may_become(there: pa.DataType, wanted: pa.DataType) -> bool:
    """Whether the column may be widened by Iceberg's rules; for nested columns PyIceberg decides."""
    return _widens(there, wanted) or (pa.types.is_nested(there) and there.id == wanted.id and there != wanted)


def _misfit(table: Table, column: str, wanted: IcebergType) -> TableRefused:
    there = named(table).schema().find_type(column)
    return TableRefused(
        f"column {column} of {_shown(table)} is {there}, and the rows have {wanted}; cast it, or give it another name",
        column=column,
        table_type=str(there),
        row_type=str(wanted),
    )


def _shown(table: Table) -> str:
    return ".".join(table.name())


def partition_spec(schema: Schema, partitioning: Partitioning) -> PartitionSpec:
    """Build the spec of a new table; raises `InvalidSettings` that names an invalid column."""
    if not partitioning.fields:
        return UNPARTITIONED_PARTITION_SPEC
    fields = []
    for index, wanted in enumerate(partitioning.fields):
        transform = parse_transform(wanted.transform)
        try:
            source = schema.find_field(wanted.column)
        except ValueError:
            known = ", ".join(schema.column_names)
            raise InvalidSettings(
                f"{partitioning.setting}: there is no column {wanted.column}; there are {known}"
            ) from None
        if not transform.can_transform(source.field_type):
            raise InvalidSettings(f"{partitioning.setting}: {wanted} does not work on a {source.field_type}")
        fields.append(SpecField(source.field_id, PARTITION_FIELD_ID_START + index, transform, wanted.name))
    return PartitionSpec(*fields)


def sort_order(schema: Schema, columns: Sequence[str]) -> SortOrder:
    """Build the sort order of a new table; rows without a value come last, as Arrow sorts them."""
    fields = [
        SortField(
            schema.find_field(column).field_id,
            transform=IdentityTransform(),
            direction=SortDirection.ASC,
            null_order=NullOrder.NULLS_LAST,
        )
        for column in columns
    ]
    return SortOrder(*fields) if fields else UNSORTED_SORT_ORDER


def partitioned_by(table: Table) -> tuple[PartitionField, ...]:
    """Return the table's current partitioning."""
    schema = table.schema()
    return tuple(
        PartitionField(schema.find_column_name(field.source_id) or "?", str(field.transform))
        for field in table.spec().fields
    )


def shown_partitioning(fields: Sequence[PartitionField]) -> str:
    return f"[{', '.join(map(str, fields))}]"

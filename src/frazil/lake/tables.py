"""Which table a topic is, what columns it has, and how it comes to be."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.io.pyarrow import _pyarrow_to_schema_without_ids
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.table.update import AssertCreate
from pyiceberg.transforms import parse_transform

from frazil.core.names import TopicName
from frazil.core.rows import OFFSET

PARTITION = pa.field("_topic_partition", pa.int32(), nullable=False)

DEFAULT_PARTITIONING = ("day(_publish_time)",)
TYPED_PARTITIONING = ("day(_append_time)",)

_PART = re.compile(r"(?P<base>.+)-part-(?P<number>\d{1,9})")
_TRANSFORM = re.compile(r"(?P<transform>\w+)(?:\[(?P<width>\d+)\])?\((?P<column>[^)]+)\)")

TABLE_PROPERTIES = {
    "format-version": "2",
    "write.parquet.compression-codec": "zstd",
    "commit.manifest-merge.enabled": "true",
    "commit.manifest.min-count-to-merge": "20",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
    "write.metadata.metrics.column._payload": "counts",
}
"""Few metadata files however many commits, and no statistics of bytes that nobody filters by."""


@dataclass(frozen=True, slots=True, order=True)
class TableName:
    namespace: str
    table: str

    @property
    def identifier(self) -> tuple[str, str]:
        return (self.namespace, self.table)

    def __str__(self) -> str:
        return f"{self.namespace}.{self.table}"


def table_of(topic: TopicName) -> tuple[TableName, int]:
    """The table of a topic, and its number in it: partitions `…-part-N` of one topic share a table."""
    part = _PART.fullmatch(topic.topic)
    if part is None:
        return TableName(topic.namespace, topic.topic), 0
    return TableName(topic.namespace, part["base"]), int(part["number"])


def table_rows(rows: pa.RecordBatch, partition: int) -> pa.RecordBatch:
    """Rows as read from the log (`_offset` first), as they stand in the table."""
    numbers = pa.repeat(pa.scalar(partition, pa.int32()), rows.num_rows)
    return rows.add_column(1, PARTITION, numbers)


def table_schema(stored: pa.Schema) -> Schema:
    arrow = pa.schema([OFFSET, PARTITION, *stored])
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(arrow))


def ensure_table(
    catalog: Catalog, name: TableName, stored: pa.Schema, partitioning: tuple[str, ...], location: str | None
) -> Table:
    """The table, made with its namespace if it is not there. Two may try at once: one makes it, both get it."""
    try:
        return catalog.load_table(name.identifier)
    except NoSuchTableError:
        pass
    _ensure_namespace(catalog, name.namespace)
    schema = table_schema(stored)
    spec = partition_spec(schema, partitioning)
    with contextlib.suppress(TableAlreadyExistsError, CommitFailedException):
        _create(catalog, name, schema, location, spec)
    return catalog.load_table(name.identifier)


def _ensure_namespace(catalog: Catalog, namespace: str) -> None:
    """Of two that make it at once, some catalogs tell the second of a broken key, not of a namespace that exists."""
    try:
        catalog.create_namespace((namespace,))
    except NamespaceAlreadyExistsError:
        pass
    except Exception:
        if not catalog.namespace_exists((namespace,)):
            raise


def _create(catalog: Catalog, name: TableName, schema: Schema, location: str | None, spec: PartitionSpec) -> None:
    """Make the table with a first, empty snapshot in the same commit.

    So every commit of rows has a parent to be pinned to. "There is no snapshot yet" would not do: Nessie does not
    check it, and takes a second first commit for the table's whole content.
    """
    transaction = catalog.create_table_transaction(name.identifier, schema, location, spec, properties=TABLE_PROPERTIES)
    with transaction.update_snapshot().fast_append():
        pass
    catalog.commit_table(transaction._table, (AssertCreate(),), transaction._updates)


def add_columns(catalog: Catalog, table: Table, stored: pa.Schema) -> Table:
    """The table with the columns it lacked; another's change at the same time is an error."""
    table = catalog.load_table(table.name())  # its schema may be another by now
    with table.update_schema() as update:
        update.union_by_name(table_schema(stored))
    return catalog.load_table(table.name())


def partition_spec(schema: Schema, partitioning: tuple[str, ...]) -> PartitionSpec:
    """A spec from words like `day(_publish_time)`, `bucket[16](_key)` or a bare column name."""
    if not partitioning:
        return UNPARTITIONED_PARTITION_SPEC
    fields = []
    for index, text in enumerate(partitioning):
        found = _TRANSFORM.fullmatch(text.strip())
        column = found["column"] if found else text.strip()
        transform = "identity"
        if found:
            transform = found["transform"] + (f"[{found['width']}]" if found["width"] else "")
        fields.append(
            PartitionField(
                source_id=schema.find_field(column).field_id,
                field_id=PARTITION_FIELD_ID_START + index,
                transform=parse_transform(transform),
                name=f"{column}_{transform.split('[')[0]}" if found else column,
            )
        )
    return PartitionSpec(*fields)

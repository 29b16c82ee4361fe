"""The columns of the Spark source, and the conversion of log and table rows to them.

Messages have the columns of Spark's Kafka source. A typed topic has its own, and `topic`, `partition`, `offset` and
`timestamp`; if it has a column of that name itself, in any case, the added one is named `_topic`, `_partition`,
`_offset` or `_timestamp`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa

from frazil.core.errors import InvalidInput
from frazil.core.rows import APPEND_TIME, ENVELOPE, OFFSET, TIME
from frazil.lake.files.widening import widened_rows, widened_schema

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))

_MESSAGE = {"key": "_key", "value": "_payload", "headers": "_attributes"}
_ADDED = {"topic": pa.string(), "partition": pa.int32(), "offset": pa.int64(), "timestamp": TIME}
_MESSAGE_COLUMNS = pa.schema(
    [
        pa.field("key", pa.binary()),
        pa.field("value", pa.binary()),
        *(pa.field(name, kind) for name, kind in _ADDED.items()),
        pa.field("timestampType", pa.int32()),
        pa.field("headers", HEADERS),
    ]
)
LOG_APPEND_TIME = 1
"""Kafka's `timestampType` for a time set by the log, not the producer."""


def source_columns(stored: pa.Schema) -> pa.Schema:
    """Return the source's columns of a topic that stores these columns.

    All are nullable for Spark: a required column may become nullable while a query runs, and Spark fails at an
    unexpected null.
    """
    if _is_message(stored):
        return _MESSAGE_COLUMNS
    own = [field.with_nullable(True) for field in widened_schema(stored) if field.name != APPEND_TIME.name]
    taken = {field.name.lower() for field in own}  # Spark treats names that differ only in case as one
    added = [pa.field(f"_{name}" if name in taken else name, kind) for name, kind in _ADDED.items()]
    return pa.schema([*own, *added])


@dataclass(frozen=True, slots=True)
class Projection:
    """Converts batches with `_offset`, from logs and tables, to the columns that Spark requested."""

    columns: pa.Schema
    needed: pa.Schema
    """The stored columns needed for the conversion."""

    def rows(self, batch: pa.RecordBatch, topic: str, partition: int) -> pa.RecordBatch:
        taken, batch = set(self.needed.names), widened_rows(batch)
        made = []
        for field in self.columns:
            column = _made(field.name, batch, taken, topic, partition)
            made.append(column if column.type.equals(field.type) else _cast(column, field.type))
        return pa.RecordBatch.from_arrays(made, schema=self.columns)


def projection(wanted: pa.Schema, stored: pa.Schema, topic: str) -> Projection:
    """Build the projection of some columns of a topic; raises for a missing column."""
    there = source_columns(stored)
    for name in wanted.names:
        if name not in there.names:
            raise InvalidInput(f"{topic} has no column {name!r}; it has {', '.join(there.names)}", column=name)
    names = {_stored_name(name, stored) for name in wanted.names}
    return Projection(wanted, pa.schema([field for field in stored if field.name in names]))


def check_same_columns(topics: Sequence[tuple[str, pa.Schema]]) -> None:
    """Check that topics that are read together have the same columns."""
    first = source_columns(topics[0][1])
    for topic, stored in topics[1:]:
        if not source_columns(stored).equals(first):
            raise InvalidInput(
                f"option subscribe: {topic} has other columns than {topics[0][0]}; read them one by one", topic=topic
            )


def check_spark_can_tell_apart(topic: str, stored: pa.Schema) -> None:
    """Refuse columns that differ only in case: a query could name neither."""
    seen: dict[str, str] = {}
    for name in source_columns(stored).names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise InvalidInput(
                f"{topic} has columns {other!r} and {name!r}, which are one name to Spark; choose with a schema, as in"
                f' .schema("`{other}` string")',
                topic=topic,
                column=name,
            )


def _is_message(stored: pa.Schema) -> bool:
    return bool(stored.equals(ENVELOPE))


def _stored_name(name: str, stored: pa.Schema) -> str:
    """Return the stored column behind one of the source's; `_offset` always exists."""
    if _is_message(stored):
        return {**_MESSAGE, "timestamp": str(APPEND_TIME.name)}.get(name, str(OFFSET.name))
    if name in stored.names:
        return name
    return str(APPEND_TIME.name if name.removeprefix("_") == "timestamp" else OFFSET.name)


def _made(name: str, batch: pa.RecordBatch, own: set[str], topic: str, partition: int) -> pa.Array:
    if name in own and name != APPEND_TIME.name:
        return batch.column(name)
    count = batch.num_rows
    match name.removeprefix("_"):
        case "topic":
            return pa.repeat(pa.scalar(topic), count)
        case "partition":
            return pa.repeat(pa.scalar(partition, pa.int32()), count)
        case "offset":
            return batch.column(OFFSET.name)
        case "timestamp":
            return batch.column(APPEND_TIME.name)
        case "timestampType":
            return pa.repeat(pa.scalar(LOG_APPEND_TIME, pa.int32()), count)
        case "headers":
            return _headers(batch.column(_MESSAGE["headers"]))
    return batch.column(_MESSAGE[name])


def _headers(attributes: pa.MapArray) -> pa.Array:
    """Convert attributes to Kafka headers. A message without attributes has none."""
    count = len(attributes)
    if attributes.null_count == count:
        return pa.nulls(count, HEADERS)
    pairs = pa.StructArray.from_arrays(
        [attributes.keys, attributes.items.cast(pa.binary())], fields=list(HEADERS.value_type)
    )
    offsets = pa.array(attributes.offsets.to_numpy())  # a copy: Arrow cannot combine a mask with a slice
    return pa.ListArray.from_arrays(offsets, pairs, HEADERS, mask=attributes.is_null())


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Spark's times have microseconds: finer ones are truncated, as in the table."""
    return column.cast(kind, safe=not pa.types.is_timestamp(kind))

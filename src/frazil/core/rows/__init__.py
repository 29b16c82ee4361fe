"""The rows of a topic: the envelope of messages, and the rules for typed rows.

Columns that Frazil fills start with `_`, in the log and in the table. A message topic holds the envelope; a typed topic
holds its own columns. Both begin with `_append_time`, the owner's clock at the commit, which never decreases within a
topic. `_offset` is implied by the position and added on reading.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

import pyarrow as pa

from frazil.core.errors import SchemaMismatch
from frazil.core.rows.storable import check_types

SCHEMA_DEPTH_MAX = 50
"""Nesting levels of a column's type. Arrow reads at most 63."""
SCHEMA_COLUMNS_MAX = 10_000
"""Columns of a schema, nested ones included."""
SCHEMA_BYTES_MAX = 768 * 1024
"""Size of a schema in Arrow's form: 1 MiB as text."""

TIME = pa.timestamp("us", tz="UTC")
ATTRIBUTES = pa.map_(pa.string(), pa.string())

OFFSET = pa.field("_offset", pa.int64(), nullable=False)
APPEND_TIME = pa.field("_append_time", TIME, nullable=False)

ENVELOPE = pa.schema(
    [
        APPEND_TIME,
        pa.field("_publish_time", TIME, nullable=False),
        pa.field("_producer", pa.string()),
        pa.field("_key", pa.binary()),
        pa.field("_attributes", ATTRIBUTES),
        pa.field("_schema_id", pa.int64()),
        pa.field("_schema_version", pa.int32()),
        pa.field("_payload", pa.binary(), nullable=False),
    ]
)


class Message(NamedTuple):
    """One row of a message topic. `append_time` orders the topic, `publish_time` is the producer's own."""

    offset: int
    append_time: datetime
    publish_time: datetime
    payload: bytes
    key: bytes | None = None
    attributes: dict[str, str] = {}
    producer: str | None = None
    schema_id: int | None = None
    schema_version: int | None = None


class Origin(NamedTuple):
    """Producer, publish time by its clock, and registry schema of a message."""

    producer: str | None = None
    publish_time_us: int | None = None
    schema_id: int | None = None
    schema_version: int | None = None


def stored_schema(own: pa.Schema | None) -> pa.Schema:
    """Return the stored schema: the envelope for a message topic, `_append_time` plus the given columns for a typed
    one.
    """
    if own is None:
        return ENVELOPE
    _check_columns(own)
    return pa.schema([APPEND_TIME, *own])


def check_own_schema(own: pa.Schema) -> None:
    """Refuse a schema that a typed topic cannot hold, naming the field, before anything is stored."""
    _check_columns(own)
    count = sum(_check_depth(field.name, field.type, 1) for field in own)
    if count > SCHEMA_COLUMNS_MAX:
        raise SchemaMismatch(
            f"the schema has {count} columns, nested ones included, more than {SCHEMA_COLUMNS_MAX}",
            columns=count,
            limit=SCHEMA_COLUMNS_MAX,
        )
    size_bytes = own.remove_metadata().serialize().size
    if size_bytes > SCHEMA_BYTES_MAX:
        raise SchemaMismatch(
            f"the schema has {size_bytes} bytes in Arrow's form, more than {SCHEMA_BYTES_MAX}; use shorter names and "
            "less metadata",
            size_bytes=size_bytes,
            limit=SCHEMA_BYTES_MAX,
        )
    check_types(own)
    for field in own:
        _check_reads_back(field)


def _check_depth(name: str, data_type: pa.DataType, depth: int) -> int:
    """Count the columns, nested ones included, and check their depth."""
    if depth > SCHEMA_DEPTH_MAX:
        column = name.partition(".")[0]
        raise SchemaMismatch(
            f"column {column!r}: is nested deeper than {SCHEMA_DEPTH_MAX} levels (a map counts as two)",
            field=column,
            limit=SCHEMA_DEPTH_MAX,
        )
    children = [data_type.field(index) for index in range(data_type.num_fields)]
    return 1 + sum(_check_depth(f"{name}.{child.name}", child.type, depth + 1) for child in children)


def _check_reads_back(field: pa.Field) -> None:
    """Check that Arrow reads the schema back unchanged: otherwise the topic would be corrupt from the start."""
    schema = pa.schema([field])
    try:
        found = pa.ipc.read_schema(pa.py_buffer(schema.serialize()))
        pa.ipc.read_record_batch(pa.RecordBatch.from_pylist([], schema=schema).serialize(), found)
        problem = None if found.equals(schema, check_metadata=True) else "it reads as another type"
    except (pa.ArrowException, ValueError, OSError, EOFError) as error:
        problem = str(error)
    if problem is not None:
        raise SchemaMismatch(f"column {field.name!r}: Arrow cannot read it back ({problem})", field=field.name)


def _check_columns(own: pa.Schema) -> None:
    if not isinstance(own, pa.Schema):
        raise SchemaMismatch(f"a schema is a pyarrow.Schema, not {type(own).__name__}")
    if len(own) == 0:
        raise SchemaMismatch("a typed topic needs at least one column")
    seen: set[str] = set()
    for field in own:
        if field.name.startswith("_"):
            raise SchemaMismatch(f"column {field.name!r}: names that start with '_' are Frazil's own", field=field.name)
        if not field.name or field.name in seen:
            raise SchemaMismatch(f"column {field.name!r}: names must be unique and not empty", field=field.name)
        seen.add(field.name)
        _check_type(field.name, field.type)


def _check_type(name: str, data_type: pa.DataType, depth: int = 1) -> None:
    if depth > 2 * SCHEMA_DEPTH_MAX:
        return  # the depth check refuses it: no need to descend further
    if pa.types.is_dictionary(data_type):
        raise SchemaMismatch(
            f"column {name!r}: dictionary types are not stored; use {data_type.value_type}", field=name
        )
    if isinstance(data_type, pa.BaseExtensionType):
        raise SchemaMismatch(f"column {name!r}: extension types are not stored; use the storage type", field=name)
    if pa.types.is_union(data_type) or pa.types.is_run_end_encoded(data_type):
        raise SchemaMismatch(f"column {name!r}: {data_type} has no counterpart in an Iceberg table", field=name)
    for index in range(data_type.num_fields):
        child = data_type.field(index)
        _check_type(f"{name}.{child.name}", child.type, depth + 1)


def constant_times(count: int, time_us: int) -> pa.Array:
    return _times(array("q", (time_us,)) * count)


def _times(values_us: array[int]) -> pa.Array:
    return pa.Array.from_buffers(TIME, len(values_us), [None, pa.py_buffer(values_us)])


nulls = functools.lru_cache(maxsize=512)(pa.nulls)
"""Shared all-null columns: most groups have one of a few sizes."""


def message_batch(
    payloads: Sequence[bytes],
    keys: Sequence[bytes | None],
    attributes: Sequence[Sequence[tuple[str, str]] | None],
    origins: Sequence[Origin | None],
    append_time_us: int,
) -> pa.RecordBatch:
    """Build envelope rows from plain columns. A producer that gave no publish time gets the append time."""
    count = len(payloads)
    append_times = constant_times(count, append_time_us)
    publish_times, producers = append_times, nulls(count, pa.string())
    schema_ids, schema_versions = nulls(count, pa.int64()), nulls(count, pa.int32())
    if origins.count(None) != count:
        names, times, ids, versions = zip(*(origin or _NOWHERE for origin in origins), strict=True)
        publish_times = _times(array("q", (append_time_us if time is None else time for time in times)))
        if names.count(None) != count:
            producers = pa.array(names, pa.string())
        if ids.count(None) != count or versions.count(None) != count:
            schema_ids, schema_versions = pa.array(ids, pa.int64()), pa.array(versions, pa.int32())
    return pa.RecordBatch.from_arrays(
        [
            append_times,
            publish_times,
            producers,
            nulls(count, pa.binary()) if keys.count(None) == count else pa.array(keys, pa.binary()),
            nulls(count, ATTRIBUTES) if attributes.count(None) == count else pa.array(attributes, ATTRIBUTES),
            schema_ids,
            schema_versions,
            pa.array(payloads, pa.binary()),
        ],
        schema=ENVELOPE,
    )


_NOWHERE = Origin()


def with_append_time(batch: pa.RecordBatch, stored: pa.Schema, append_time_us: int) -> pa.RecordBatch:
    """Return the batch as stored: the owner's append time before the caller's columns."""
    timed = batch.add_column(0, APPEND_TIME, constant_times(batch.num_rows, append_time_us))
    return upgraded(timed, stored)


def with_offsets(batch: pa.RecordBatch, first_offset: int) -> pa.RecordBatch:
    """Return the batch as read: `_offset` before the stored columns."""
    return batch.add_column(0, OFFSET, pa.arange(first_offset, first_offset + batch.num_rows))


def joined(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches of one schema; a single batch is returned unchanged."""
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)


def to_messages(batch: pa.RecordBatch) -> list[Message]:
    """Convert an envelope batch to messages, column by column rather than cell by cell."""
    count = batch.num_rows

    def values(name: str) -> Sequence[Any]:
        column = batch.column(name)
        return [None] * count if column.null_count == count else column.to_pylist()

    attributes = [dict(pairs) if pairs else {} for pairs in values("_attributes")]
    return [
        Message(*row)
        for row in zip(
            values("_offset"),
            values("_append_time"),
            values("_publish_time"),
            values("_payload"),
            values("_key"),
            attributes,
            values("_producer"),
            values("_schema_id"),
            values("_schema_version"),
            strict=True,
        )
    ]


def check_change(old: pa.Schema, new: pa.Schema) -> None:
    """Allow only new nullable columns and wider types; any other change would make stored rows unreadable."""
    names = set(new.names)
    for field in old:
        if field.name not in names:
            raise SchemaMismatch(f"column {field.name!r} cannot be dropped: stored rows have it", field=field.name)
        target = new.field(field.name)
        if field.nullable and not target.nullable:
            raise SchemaMismatch(
                f"column {field.name!r} cannot become required: stored rows may be null", field=field.name
            )
        if not widens(field.type, target.type):
            raise SchemaMismatch(
                f"column {field.name!r} cannot change from {field.type} to {target.type}; only widening is possible",
                field=field.name,
            )
    for field in new:
        if field.name not in old.names and not field.nullable:
            raise SchemaMismatch(f"new column {field.name!r} must be nullable: stored rows lack it", field=field.name)


def widens(old: pa.DataType, new: pa.DataType) -> bool:
    """Whether every value of one type fits unchanged into the other."""
    if old == new:
        return True
    if pa.types.is_signed_integer(old) and pa.types.is_signed_integer(new):
        return bool(old.bit_width < new.bit_width)
    if pa.types.is_floating(old) and pa.types.is_floating(new):
        return bool(old.bit_width < new.bit_width)
    if pa.types.is_decimal(old) and pa.types.is_decimal(new):
        return bool(old.scale == new.scale and old.precision <= new.precision)
    large = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}
    return bool(large.get(old) == new)


def upgraded(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Convert a batch of an older schema of its topic to the newer one."""
    if batch.schema.equals(stored):
        return batch
    missing = SharedNulls(batch.num_rows)
    columns: list[pa.Array] = []
    for field in stored:
        if field.name in batch.schema.names:
            columns.append(batch.column(field.name).cast(field.type))
        else:
            columns.append(missing.of(field.type))
    return pa.RecordBatch.from_arrays(columns, schema=stored)


class SharedNulls:
    """Columns of nulls for one batch: many of one type take the memory of one."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._made: dict[pa.DataType, pa.Array] = {}

    def of(self, kind: pa.DataType) -> pa.Array:
        found = self._made.get(kind)
        if found is None:
            found = self._made[kind] = pa.nulls(self._count, kind)
        return found

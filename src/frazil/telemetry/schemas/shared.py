"""Columns that the tables of several signals have.

No table can hold unsigned 64-bit integers. Times in nanoseconds, counts and bucket counts keep their 64 bits in an
`int64`: a negative number stands for itself plus 2^64. Unsigned 32-bit integers are an `int64` too.
"""

from __future__ import annotations

import pyarrow as pa

from frazil.core.rows import APPEND_TIME, ATTRIBUTES, OFFSET, TIME

UNSIGNED_64 = pa.int64()
"""Of a number that is sent as uint64 or fixed64: its 64 bits."""
UNSIGNED_32 = pa.int64()

HEAD = (
    OFFSET,
    pa.field("_topic_partition", pa.int32(), nullable=False),
    pa.field("_index", pa.int32(), nullable=False),
    APPEND_TIME,
)
"""Where a row comes from: its request in the log, and its place in the request."""

TIMESTAMP = pa.field("timestamp", TIME, nullable=False)
"""Event time for partitions and people, and the time of the append if none was sent."""

ENTITY_REF = pa.struct(
    [
        pa.field("schema_url", pa.string()),
        pa.field("type", pa.string()),
        pa.field("id_keys", pa.list_(pa.string())),
        pa.field("description_keys", pa.list_(pa.string())),
    ]
)


def attributes(name: str) -> tuple[pa.Field, pa.Field]:
    """Return the columns of a set of attributes: their texts, and the types of those that are not strings."""
    return pa.field(name, ATTRIBUTES), pa.field(f"{name}_types", ATTRIBUTES)


CONTEXT = (
    pa.field("service_name", pa.string(), nullable=False),
    *attributes("resource_attributes"),
    pa.field("resource_dropped_attributes_count", UNSIGNED_32),
    pa.field("resource_entity_refs", pa.list_(ENTITY_REF)),
    pa.field("resource_schema_url", pa.string()),
    pa.field("scope_name", pa.string()),
    pa.field("scope_version", pa.string()),
    *attributes("scope_attributes"),
    pa.field("scope_dropped_attributes_count", UNSIGNED_32),
    pa.field("scope_schema_url", pa.string()),
)
"""What a span, a record or a point has of its resource and of its scope."""

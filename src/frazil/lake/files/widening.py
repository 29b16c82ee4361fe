"""Convert numbers that Iceberg lacks, unsigned integers and half floats, to a wider type that it has.

PyIceberg would map uint32 to a 32-bit column, and write uint64 in a form that other engines refuse. Spark and DuckDB do
not support half floats.
"""

from __future__ import annotations

import functools

import pyarrow as pa

_WIDER = {
    pa.uint8(): pa.int32(),
    pa.uint16(): pa.int32(),
    pa.uint32(): pa.int64(),
    pa.uint64(): pa.int64(),
    pa.float16(): pa.float32(),
}


def widened_schema(columns: pa.Schema) -> pa.Schema:
    return pa.schema([_widened_field(field) for field in columns])


def widened_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Convert rows without numbers above 2^63 - 1; values below a null may be anything."""
    wanted = widened_schema(rows.schema)
    return rows if wanted.equals(rows.schema) else rows.cast(wanted, safe=False)


def _widened_field(field: pa.Field) -> pa.Field:
    return field.with_type(_widened(field.type))


@functools.lru_cache(maxsize=1_024)
def _widened(kind: pa.DataType) -> pa.DataType:
    if kind in _WIDER:
        return _WIDER[kind]
    if pa.types.is_struct(kind):
        return pa.struct([_widened_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_widened_field(kind.key_field), _widened_field(kind.item_field), kind.keys_sorted)
    if pa.types.is_large_list(kind):
        return pa.large_list(_widened_field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(_widened_field(kind.value_field))
    return kind

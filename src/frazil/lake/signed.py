"""Unsigned numbers as Iceberg has them: it knows signed ones alone, so each goes into one that is wide enough.

PyIceberg would map uint32 to a column of 32 bits, and write uint64 in a form that other engines refuse.
"""

from __future__ import annotations

import functools

import pyarrow as pa

_SIGNED = {pa.uint8(): pa.int32(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.int64()}


def signed_schema(columns: pa.Schema) -> pa.Schema:
    return pa.schema([_signed_field(field) for field in columns])


def signed_rows(rows: pa.RecordBatch) -> pa.RecordBatch:
    """The same rows, of which none has a number above 2^63 - 1; what stands below a null may be anything."""
    wanted = signed_schema(rows.schema)
    return rows if wanted.equals(rows.schema) else rows.cast(wanted, safe=False)


def _signed_field(field: pa.Field) -> pa.Field:
    return field.with_type(_signed(field.type))


@functools.lru_cache(maxsize=1_024)
def _signed(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_unsigned_integer(kind):
        return _SIGNED[kind]
    if pa.types.is_struct(kind):
        return pa.struct([_signed_field(field) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_signed_field(kind.key_field), _signed_field(kind.item_field), kind.keys_sorted)
    if pa.types.is_large_list(kind):
        return pa.large_list(_signed_field(kind.value_field))
    if pa.types.is_list(kind):
        return pa.list_(_signed_field(kind.value_field))
    return kind

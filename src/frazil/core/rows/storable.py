"""Which columns and values an Iceberg table can hold; all others are refused before they reach a log.

A row that no table can hold would stay in the log for ever and block all later rows of its topic.

    types     are checked when a topic is created or changed
    values    are checked when rows are published: only in columns whose type has values that a table can't hold, and by
              the minimum and maximum of a column, not row by row
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.core.errors import SchemaMismatch, ValueNotStorable

_UTC = ("UTC", "+00:00", "Etc/UTC", "Z")
_YEARS = "only the years 1 to 9999 can be stored"
_TIME_MIN_US, _TIME_MAX_US = -62_135_596_800_000_000, 253_402_300_799_999_999
_DAY_MIN, _DAY_MAX = -719_162, 2_932_896
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}

Check = Callable[[pa.Array], str | None]
"""Returns what is wrong with a column, or None. Values below a null are ignored: they are never read."""


def check_types(own: pa.Schema) -> None:
    """Raise `SchemaMismatch` for the first column, nested or not, that no Iceberg table can have."""
    seen: set[str] = set()
    for field in own:
        for name, kind in _columns(field.name, field.type):
            if name in seen:
                raise SchemaMismatch(
                    f"column {name!r}: an Iceberg table would have two columns of that name; rename one", field=name
                )
            seen.add(name)
            if (advice := _unstorable(kind)) is not None:
                raise SchemaMismatch(
                    f"column {name!r}: {kind} has no counterpart in an Iceberg table; {advice}", field=name
                )


def check_values(batch: pa.RecordBatch) -> None:
    """Raise `ValueNotStorable` for the column and the first row with a value that no Iceberg table can hold."""
    for index, field in enumerate(batch.schema):
        check = _check(field.type)
        if check is not None and (why := check(batch.column(index))) is not None:
            raise ValueNotStorable(field.name, _first_row(check, batch.column(index)), why)


def _first_row(check: Check, column: pa.Array) -> int:
    """Find the first failing row by bisection."""
    low, count = 0, len(column)
    while count > 1:
        half = count // 2
        if check(column.slice(low, half)) is not None:
            count = half
        else:
            low, count = low + half, count - half
    return low


def _columns(name: str, kind: pa.DataType) -> Iterator[tuple[str, pa.DataType]]:
    """Yield a column and its nested columns, by their Iceberg names."""
    yield name, kind
    if pa.types.is_map(kind):
        yield from _columns(f"{name}.key", kind.key_type)
        yield from _columns(f"{name}.value", kind.item_type)
    elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
        yield from _columns(f"{name}.element", kind.value_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _columns(f"{name}.{field.name}", field.type)


def _unstorable(kind: pa.DataType) -> str | None:
    """Return what to use instead of a type that no table can have."""
    types = pa.types
    if types.is_timestamp(kind):
        return _unstorable_time(kind)
    if types.is_decimal(kind):
        return _unstorable_decimal(kind)
    if types.is_struct(kind):
        return _unstorable_struct(kind)
    if types.is_time(kind):
        return None if kind == pa.time64("us") else "use time64[us]"
    if types.is_null(kind):
        return "it has no values: leave it out, or give it a type"
    if types.is_date64(kind):
        return "use date32"
    if types.is_duration(kind) or types.is_interval(kind):
        return "use int64 and a unit in the name"
    if types.is_fixed_size_list(kind) or types.is_list_view(kind) or types.is_large_list_view(kind):
        return f"use list<{kind.value_type}>"
    if types.is_string_view(kind) or types.is_binary_view(kind):
        return "use string" if types.is_string_view(kind) else "use binary"
    if types.is_fixed_size_binary(kind) and kind.byte_width == 0:
        return "use binary"
    return None


def _unstorable_time(kind: pa.TimestampType) -> str | None:
    if kind.tz is not None and kind.tz not in _UTC:
        return "use a time of UTC, with the zone in another column"
    return "use timestamp[us], which Iceberg's times are" if kind.unit == "ns" else None


def _unstorable_decimal(kind: pa.DataType) -> str | None:
    if not pa.types.is_decimal128(kind):
        return "use decimal128 with a precision of at most 38"
    return None if 0 <= kind.scale <= kind.precision else "use a scale between 0 and the precision"


def _unstorable_struct(kind: pa.StructType) -> str | None:
    if not kind.num_fields:
        return "give it a field"
    return "give each field a name" if any(not field.name for field in kind) else None


@functools.lru_cache(maxsize=1_024)
def _check(kind: pa.DataType) -> Check | None:
    """Return the value check of a type; None if all its values can be stored."""
    if pa.types.is_uint64(kind):
        return _between(pa.uint64(), 0, 2**63 - 1, "the greatest number that can be stored is 2^63 - 1")
    if pa.types.is_timestamp(kind) and kind.unit in _UNIT_US:
        unit_us = _UNIT_US[kind.unit]
        return _between(pa.int64(), -(-_TIME_MIN_US // unit_us), _TIME_MAX_US // unit_us, _YEARS)
    if pa.types.is_date32(kind):
        return _between(pa.int32(), _DAY_MIN, _DAY_MAX, _YEARS)
    if pa.types.is_struct(kind):
        return _check_struct(kind)
    if pa.types.is_map(kind):
        entries = pa.struct([pa.field("key", kind.key_type), kind.item_field.with_name("value")])
        inner, as_list = _flattened(_check_struct(entries)), pa.list_(_all_nullable(entries))
        return None if inner is None else lambda column: inner(column.view(as_list))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _flattened(_check_field(kind.value_field.with_name("element")))
    return None


def _between(kind: pa.DataType, least: int, greatest: int, why: str) -> Check:
    """Compare values as plain numbers, so that values outside any calendar can be checked too."""
    numbers = np.dtype(kind.to_pandas_dtype())

    def check(column: pa.Array) -> str | None:
        count = len(column)
        if not count or column.null_count:
            extent = pc.min_max(column.view(kind))
            low, high = extent["min"].as_py(), extent["max"].as_py()
            return None if low is None or (low >= least and high <= greatest) else why
        values = np.frombuffer(column.buffers()[1], numbers, count, column.offset * numbers.itemsize)
        return None if values.min() >= least and values.max() <= greatest else why

    return check


def _check_field(field: pa.Field) -> Check | None:
    inner = _check(field.type)
    if field.nullable:
        return inner
    why = f"its {field.name} may not be null"

    def check(column: pa.Array) -> str | None:
        return why if column.null_count else None if inner is None else inner(column)

    return check


def _check_struct(kind: pa.StructType) -> Check | None:
    checks = [(at, one) for at in range(kind.num_fields) if (one := _check_field(kind.field(at))) is not None]
    if not checks:
        return None

    def check(column: pa.Array) -> str | None:
        there = column.drop_null() if column.null_count else column
        fields = there.flatten()
        return next((why for at, one in checks if (why := one(fields[at])) is not None), None)

    return check


def _all_nullable(entries: pa.StructType) -> pa.StructType:
    """Make all fields nullable: Arrow views an array with nulls as no other type."""
    return pa.struct([field.with_nullable(True) for field in entries])


def _flattened(inner: Check | None) -> Check | None:
    """Check a list's elements, without those below a null."""
    return None if inner is None else lambda column: inner(column.flatten())

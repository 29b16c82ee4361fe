"""The columns of a table for DuckDB, which finds them in Parquet files by field id.

Names in the files are unreliable: Parquet spells `unit-price` differently, and another engine may have renamed a column
since a file was written. DuckDB finds members of a struct only by name; `has_structs` says where that matters.
"""

from __future__ import annotations

from pyiceberg.schema import Schema
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

_PLAIN: dict[type[IcebergType], str] = {
    BooleanType: "BOOLEAN",
    IntegerType: "INTEGER",
    LongType: "BIGINT",
    FloatType: "FLOAT",
    DoubleType: "DOUBLE",
    DateType: "DATE",
    TimeType: "TIME",
    TimestampType: "TIMESTAMP",
    TimestamptzType: "TIMESTAMP WITH TIME ZONE",
    StringType: "VARCHAR",
    UUIDType: "UUID",
    FixedType: "BLOB",
    BinaryType: "BLOB",
}


def duck_types(schema: Schema) -> tuple[tuple[int, str], ...] | None:
    """Return field id and type of each column; None if DuckDB lacks one of the types."""
    found = [(field.field_id, duck_type(field.field_type)) for field in schema.fields]
    return None if any(kind is None for _, kind in found) else tuple((number, str(kind)) for number, kind in found)


def duck_type(kind: IcebergType) -> str | None:
    if isinstance(kind, DecimalType):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    if isinstance(kind, ListType):
        element = duck_type(kind.element_type)
        return None if element is None else f"{element}[]"
    if isinstance(kind, MapType):
        key, value = duck_type(kind.key_type), duck_type(kind.value_type)
        return None if key is None or value is None else f"MAP({key}, {value})"
    if isinstance(kind, StructType):
        members = [(field.name, duck_type(field.field_type)) for field in kind.fields]
        if not members or any(member is None for _, member in members):
            return None
        return "STRUCT(" + ", ".join(f"{_quoted(name)} {member}" for name, member in members) + ")"
    return _PLAIN.get(type(kind))


def has_structs(schema: Schema) -> bool:
    return any(isinstance(schema.find_type(number), StructType) for number in schema.field_ids)


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'

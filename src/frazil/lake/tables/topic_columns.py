"""The columns of a topic by their names in its table: another engine may have renamed some."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow as pa
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.core.errors import TableRefused
from frazil.lake.tables.field_ids import check_columns, named


class TopicColumns:
    """Maps the columns of a table to those of its topic, including members of structs."""

    def __init__(self, table: Table) -> None:
        self._ours = named(table)
        self._table = table

    def check(self, wanted: Iterable[str]) -> None:
        """Raise `TableRefused` for a topic column that was dropped from the table."""
        check_columns(self._ours, wanted)

    def in_table_names(self, columns: pa.Schema) -> pa.Schema:
        """Return the topic's columns by the table's names; a column that the table lacks keeps its own.

        Raises `TableRefused` if the table has another of the topic's columns under that name.
        """
        if self._ours is self._table:
            return columns
        ours, theirs = self._ours.schema().fields, self._table.schema().fields
        found = [_renamed(field, ours, theirs) for field in columns]
        for at, (old, new) in enumerate(zip(columns.names, found, strict=True)):
            if any(new.name == other.name for other in found[:at] + found[at + 1 :]):
                raise TableRefused(
                    f"{'.'.join(self._table.name())} has two columns of the topic by the name {new.name}, since another"
                    " engine renamed one of them; give it another name there",
                    table=".".join(self._table.name()),
                    column=old,
                )
        return pa.schema(found)


def relabelled(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the same rows under other names, of columns and of members within them, without a copy."""
    return pa.record_batch(_Relabelled(rows, schema))


class _Relabelled:
    """Renames through Arrow's C interface, which has names only in the schema."""

    def __init__(self, rows: pa.RecordBatch, schema: pa.Schema) -> None:
        self._rows = rows
        self._schema = schema

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[Any, Any]:
        return self._schema.__arrow_c_schema__(), self._rows.__arrow_c_array__()[1]


def _renamed(field: pa.Field, ours: Sequence[NestedField], theirs: Sequence[NestedField]) -> pa.Field:
    for own, there in zip(ours, theirs, strict=True):
        if own.name == field.name:
            kind = _renamed_type(field.type, own.field_type, there.field_type)
            return pa.field(there.name, kind, field.nullable)
    return field


def _renamed_type(kind: pa.DataType, own: IcebergType, there: IcebergType) -> pa.DataType:
    if isinstance(own, StructType) and isinstance(there, StructType) and pa.types.is_struct(kind):
        return pa.struct([_renamed(field, own.fields, there.fields) for field in kind])
    if isinstance(own, ListType) and isinstance(there, ListType) and (element := _element(kind)) is not None:
        inner = element.with_type(_renamed_type(element.type, own.element_type, there.element_type))
        return pa.large_list(inner) if pa.types.is_large_list(kind) else pa.list_(inner)
    if isinstance(own, MapType) and isinstance(there, MapType) and pa.types.is_map(kind):
        key = kind.key_field.with_type(_renamed_type(kind.key_type, own.key_type, there.key_type))
        item = kind.item_field.with_type(_renamed_type(kind.item_type, own.value_type, there.value_type))
        return pa.map_(key, item, kind.keys_sorted)
    return kind


def _element(kind: pa.DataType) -> pa.Field | None:
    return kind.value_field if pa.types.is_list(kind) or pa.types.is_large_list(kind) else None

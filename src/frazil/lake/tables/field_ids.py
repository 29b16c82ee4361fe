"""Maps fields of a table to the columns of its topic, by field id.

    frazil.columns   {"columns": {field id: name}, "fields": {field id: name}}, of columns and of fields within them

Another engine may rename a column, or swap the names of two. The field id stays, so the values are still found, and new
ones are written to the same field. Readers and writers of a topic's rows use the table returned by `named`, in which
each field has the topic's name. A dropped column has no field; its name is still recorded, so that its absence is not
read as nulls.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.types import IcebergType, ListType, MapType, NestedField, StructType

from frazil.core.errors import TableRefused

COLUMNS = "frazil.columns"


@dataclass(frozen=True, slots=True)
class Remembered:
    """Names by field id: of the topic's columns, and of the fields within them."""

    columns: Mapping[int, str] = field(default_factory=dict)
    fields: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, table: Table) -> Remembered:
        text = table.metadata.properties.get(COLUMNS)
        if text is None:
            return cls()
        try:
            found = json.loads(text)
            return cls(
                *({int(number): str(name) for number, name in found[key].items()} for key in ("columns", "fields"))
            )
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise TableRefused(
                f"the property {COLUMNS} of {'.'.join(table.name())} can't be read ({error}); unset it, if no column"
                " was renamed",
                table=".".join(table.name()),
            ) from None

    def text(self) -> str:
        return json.dumps({"columns": self.columns, "fields": self.fields}, separators=(",", ":"))

    def with_those_of(self, schema: Schema, columns: pa.Schema) -> Remembered:
        """Add the topic's columns in a schema that has the topic's names."""
        ours = [each for each in schema.fields if each.name in columns.names]
        inner = {each.field_id: each.name for one in ours for each in _within(one.field_type)}
        return Remembered({**self.columns, **{each.field_id: each.name for each in ours}}, {**self.fields, **inner})


def named(table: Table) -> Table:
    """Return the table with the topic's names for the topic's columns; the same object if it has them."""
    names = Remembered.of(table)
    schemas = [_renamed(schema, names) for schema in table.metadata.schemas]
    if all(new is old for new, old in zip(schemas, table.metadata.schemas, strict=True)):
        return table
    metadata = table.metadata.model_copy(update={"schemas": schemas})
    return Table(table.name(), metadata, table.metadata_location, table.io, table.catalog, table.config)


def check_columns(table: Table, wanted: Iterable[str]) -> None:
    """Raise `TableRefused` for a topic column that the table once had; `table` is a result of `named`."""
    there, known = set(table.schema().column_names), set(Remembered.of(table).columns.values())
    for name in wanted:
        if name in known and name not in there:
            raise TableRefused(
                f"column {name} was dropped from {'.'.join(table.name())}, and its values with it; the next move of the"
                " topic recreates it, without the values of rows that were moved before",
                table=".".join(table.name()),
                column=name,
            )


def in_table_names(wanted: Schema, topic: Schema, table: Schema) -> Schema:
    """Translate columns from the topic's names to the table's; `topic` is the table's schema from `named`."""
    return Schema(*_in_table_names(wanted.fields, topic.fields, table.fields))


def _in_table_names(
    wanted: Sequence[NestedField], topic: Sequence[NestedField], table: Sequence[NestedField]
) -> Iterator[NestedField]:
    pairs = {one.name: (one.field_type, other) for one, other in zip(topic, table, strict=True)}
    taken = {other.name: one.name for one, other in zip(topic, table, strict=True)}
    for each in wanted:
        if each.name in pairs:
            kind, there = pairs[each.name]
            found = _type_in_table_names(each.field_type, kind, there.field_type)
            yield each.model_copy(update={"name": there.name, "field_type": found})
        elif each.name in taken:
            raise TableRefused(
                f"column {each.name} can't be added: the table has the topic's column {taken[each.name]} by that name, "
                "since another engine renamed it; give it another name there",
                column=each.name,
            )
        else:
            yield each


def _type_in_table_names(wanted: IcebergType, topic: IcebergType, table: IcebergType) -> IcebergType:
    if isinstance(wanted, StructType) and isinstance(topic, StructType) and isinstance(table, StructType):
        return StructType(*_in_table_names(wanted.fields, topic.fields, table.fields))
    if isinstance(wanted, ListType) and isinstance(topic, ListType) and isinstance(table, ListType):
        found = _type_in_table_names(wanted.element_type, topic.element_type, table.element_type)
        return wanted.model_copy(update={"element_type": found})
    if isinstance(wanted, MapType) and isinstance(topic, MapType) and isinstance(table, MapType):
        key = _type_in_table_names(wanted.key_type, topic.key_type, table.key_type)
        value = _type_in_table_names(wanted.value_type, topic.value_type, table.value_type)
        return wanted.model_copy(update={"key_type": key, "value_type": value})
    return wanted


def _renamed(schema: Schema, names: Remembered) -> Schema:
    known = {**names.fields, **names.columns}
    if all(known.get(each.field_id, each.name) == each.name for each in _all(schema.fields)):
        return schema
    return Schema(
        *_renamed_fields(schema.fields, known),
        schema_id=schema.schema_id,
        identifier_field_ids=schema.identifier_field_ids,
    )


def _renamed_fields(fields: Sequence[NestedField], known: Mapping[int, str]) -> Iterator[NestedField]:
    """A foreign column that took the name of one of the topic's is distinguished by its id."""
    ours = {known[each.field_id] for each in fields if each.field_id in known}
    for each in fields:
        name = known.get(each.field_id)
        if name is None:
            name = f"{each.name}#{each.field_id}" if each.name in ours else each.name
        yield each.model_copy(update={"name": name, "field_type": _renamed_type(each.field_type, known)})


def _renamed_type(kind: IcebergType, known: Mapping[int, str]) -> IcebergType:
    if isinstance(kind, StructType):
        return StructType(*_renamed_fields(kind.fields, known))
    if isinstance(kind, ListType):
        return kind.model_copy(update={"element_type": _renamed_type(kind.element_type, known)})
    if isinstance(kind, MapType):
        key, value = _renamed_type(kind.key_type, known), _renamed_type(kind.value_type, known)
        return kind.model_copy(update={"key_type": key, "value_type": value})
    return kind


def _all(fields: Iterable[NestedField]) -> Iterator[NestedField]:
    for each in fields:
        yield each
        yield from _within(each.field_type)


def _within(kind: IcebergType) -> Iterator[NestedField]:
    """Return the named fields within a type: a list's element and a map's key and value have no own names."""
    if isinstance(kind, StructType):
        yield from _all(kind.fields)
    elif isinstance(kind, ListType):
        yield from _within(kind.element_type)
    elif isinstance(kind, MapType):
        yield from _within(kind.key_type)
        yield from _within(kind.value_type)

"""Columns that a table gains from what its writers send, and batches in the form of a schema that has changed since.

plain_schema   a writer's schema without metadata, which nobody stores
evolved        the topic's columns, with those that a writer adds or widens
fitted         a writer's batch in the topic's form: nulls for columns that it lacks, values of narrower types as wider
narrowed       rows in an earlier form of their topic, if that loses nothing
"""

from __future__ import annotations

import pyarrow as pa

from frazil.core.errors import SchemaMismatch
from frazil.core.rows import SharedNulls, check_own_schema, widens

EVOLVED_COLUMNS_MAX = 1_000
"""Columns of a table that its writers extend, nested ones included: a table remembers each of its schemas."""


def plain_schema(given: pa.Schema) -> pa.Schema:
    """Return a writer's schema without metadata of any field; raises `SchemaMismatch` if no topic can have it."""
    _check_count(given)
    found = pa.schema([_plain_field(field) for field in given])
    check_own_schema(found)
    _check_case(found)
    return found


def evolved(own: pa.Schema, given: pa.Schema) -> pa.Schema:
    """Return the columns of a topic that a writer's rows fit into; `own` itself if they do already.

    New columns may be null, whatever the writer says of its own rows: stored rows lack them. Raises `SchemaMismatch`
    with the name of a column that is missing and may not be null, or whose type is another one.
    """
    sent = {field.name: field for field in given}
    for field in own:
        if not field.nullable and field.name not in sent:
            raise _mismatch(field.name, "is missing, and may not be null")
    there = set(own.names)
    fields = [field if field.name not in sent else _wider(field, sent[field.name].type) for field in own]
    fields += [field.with_nullable(True) for field in given if field.name not in there]
    found = pa.schema(fields)
    if found.equals(own):
        return own
    _check_case(found)
    _check_count(found)
    return found


class Fit:
    """How batches of a schema that `evolved` has accepted become rows of a topic. Made once for many batches."""

    def __init__(self, given: pa.Schema, own: pa.Schema) -> None:
        at = {name: index for index, name in enumerate(given.names)}
        self.own = own
        self._is_same = given.equals(own)
        self._columns = [at.get(name, -1) for name in own.names]
        kinds, wanted = given.types, own.types
        self._is_cast = [one >= 0 and kinds[one] != kind for one, kind in zip(self._columns, wanted, strict=True)]
        self._types = wanted
        self.needs_cast = any(self._is_cast)
        """Whether `rows` converts values, and so looks at buffers that must be validated before."""

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return a batch in the form of the topic: nulls for columns that it lacks, wider values."""
        if self._is_same:
            return batch
        missing, columns = SharedNulls(batch.num_rows), []
        for at, is_cast, kind in zip(self._columns, self._is_cast, self._types, strict=True):
            column = missing.of(kind) if at < 0 else batch.column(at)
            columns.append(column.cast(kind) if is_cast else column)
        return pa.RecordBatch.from_arrays(columns, schema=self.own)


def narrowed(batch: pa.RecordBatch, earlier: pa.Schema) -> pa.RecordBatch | None:
    """Return rows in an earlier form of their topic; None if they have values that it cannot hold."""
    known = set(earlier.names)
    if any(batch.column(at).null_count < len(batch) for at, name in enumerate(batch.schema.names) if name not in known):
        return None
    if any(pa.types.is_floating(one.type) and one.type != batch.schema.field(one.name).type for one in earlier):
        return None  # Arrow would round them
    try:
        columns = [batch.column(field.name).cast(field.type) for field in earlier]
    except pa.ArrowException:
        return None
    return pa.RecordBatch.from_arrays(columns, schema=earlier)


def _wider(field: pa.Field, sent: pa.DataType) -> pa.Field:
    """Return a column of the topic, widened if a writer has a wider one. A narrower one fits as it is."""
    if sent == field.type or widens(sent, field.type):
        return field
    if widens(field.type, sent):
        return field.with_type(sent)
    raise _mismatch(field.name, f"has type {sent}, not {field.type}")


def _plain_field(field: pa.Field) -> pa.Field:
    return pa.field(field.name, _plain_type(field.type), field.nullable)


def _plain_type(kind: pa.DataType) -> pa.DataType:
    if pa.types.is_struct(kind):
        return pa.struct([_plain_field(field) for field in kind])
    if pa.types.is_map(kind):
        key, item = _plain_field(kind.key_field), _plain_field(kind.item_field)
        return pa.map_(key.with_name("key"), item.with_name("value"), kind.keys_sorted)  # as Arrow reads it back
    if pa.types.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    return pa.large_list(_plain_field(kind.value_field)) if pa.types.is_large_list(kind) else kind


def _check_case(schema: pa.Schema) -> None:
    seen: dict[str, str] = {}
    for name in schema.names:
        other = seen.setdefault(name.lower(), name)
        if other != name:
            raise _mismatch(name, f"differs from {other!r:.200} in case alone, and SQL would take them for one")


def _check_count(schema: pa.Schema) -> None:
    count = sum(_count(field.type) for field in schema)
    if count > EVOLVED_COLUMNS_MAX:
        raise SchemaMismatch(
            f"the table would have {count} columns, nested ones included, more than {EVOLVED_COLUMNS_MAX}",
            columns=count,
            limit=EVOLVED_COLUMNS_MAX,
        )


def _count(kind: pa.DataType) -> int:
    return 1 + sum(_count(kind.field(index).type) for index in range(kind.num_fields))


def _mismatch(name: str, reason: str) -> SchemaMismatch:
    return SchemaMismatch(f"column {name!r:.200} {reason}", field=name)

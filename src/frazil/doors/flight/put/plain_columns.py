"""The columns and types that a topic accepts in plain batches of a stock Flight client.

A typed topic accepts its own columns in their own types. A message topic accepts the columns of the envelope, with or
without the leading `_`; texts and keys may also be strings.
"""

from __future__ import annotations

import pyarrow as pa

from frazil.core.errors import SchemaMismatch
from frazil.node.types.log import GIVEN, Topic, check_safe

_BYTES = (pa.binary(), pa.string(), pa.large_binary(), pa.large_string())
"""Types that can be stored as bytes. Views are excluded: a few bytes of views can refer to much data."""


class PlainColumns:
    """Maps a stream's schema to a topic; raises `SchemaMismatch` with the name of an unsupported column."""

    def __init__(self, topic: Topic, schema: pa.Schema) -> None:
        for field in schema:
            if pa.types.is_dictionary(field.type):
                raise _mismatch(field.name, f"is dictionary-encoded; send it as {field.type.value_type}")
        if topic.schema is None:
            self._names = _message_columns(schema)
            self._target: pa.Schema | None = pa.schema([GIVEN.field(name) for name in self._names])
            self._is_as_stored = self._names == schema.names and self._target.types == schema.types
        else:
            self._names = _typed_columns(schema, topic.schema)
            self._target = None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in the topic's form. Validated here if columns must be converted, else by the topic."""
        if self._target is None or self._is_as_stored:
            return batch
        check_safe(batch)
        try:
            arrays = [array.cast(field.type) for array, field in zip(batch.columns, self._target, strict=True)]
        except pa.ArrowException as error:
            raise SchemaMismatch(f"the batch cannot be stored as bytes: {error}") from None
        return pa.RecordBatch.from_arrays(arrays, names=self._names)


def _message_columns(schema: pa.Schema) -> list[str]:
    names: list[str] = []
    for field in schema:
        name = field.name if field.name.startswith("_") else f"_{field.name}"
        if name in ("_offset", "_append_time"):
            raise _mismatch(field.name, "is filled by Frazil; leave it out")
        if name not in GIVEN.names:
            known = ", ".join(one.removeprefix("_") for one in GIVEN.names)
            raise _mismatch(field.name, f"is not known: a message topic takes {known}")
        if name in names:
            raise _mismatch(field.name, "is there more than once")
        wanted = GIVEN.field(name).type
        if field.type != wanted and not (wanted == pa.binary() and field.type in _BYTES):
            raise _mismatch(field.name, f"has type {field.type}, not {wanted}")
        names.append(name)
    if "_payload" not in names:
        raise _mismatch("payload", "is missing: a message topic needs it")
    return names


def _typed_columns(schema: pa.Schema, own: pa.Schema) -> list[str]:
    for field in schema:
        if field.name not in own.names:
            raise _mismatch(field.name, f"is not in the topic's schema, which has {', '.join(own.names[:20])}")
        if len(schema.get_all_field_indices(field.name)) > 1:
            raise _mismatch(field.name, "is there more than once")
        wanted = own.field(field.name).type
        if field.type != wanted:
            raise _mismatch(field.name, f"has type {field.type}, not {wanted}")
    for name in own.names:
        if name not in schema.names:
            raise _mismatch(name, "is missing")
    return list(schema.names)


def _mismatch(name: str, reason: str) -> SchemaMismatch:
    return SchemaMismatch(f"column {name!r:.200} {reason}", field=name)

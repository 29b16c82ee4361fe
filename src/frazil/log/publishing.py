"""What callers may publish: every message and batch is checked in full before it is queued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import pyarrow as pa

from frazil.core.errors import BatchTooLarge, InvalidInput, MessageTooLarge, SchemaMismatch
from frazil.core.rows import ENVELOPE, constant_times
from frazil.core.settings import WalSettings

_ROW_BYTES = 64
"""What a message costs in the queue besides its own bytes."""


class Outgoing(NamedTuple):
    """One message for `publish_many`, where a bare payload does not say enough."""

    payload: bytes | str
    key: bytes | str | None = None
    attributes: Mapping[str, str] | None = None


class Checked(NamedTuple):
    """A message that can be stored as it is, and the bytes it takes in the queue."""

    payload: bytes
    key: bytes | None
    attributes: list[tuple[str, str]] | None
    size_bytes: int


def checked_message(settings: WalSettings, payload: Any, key: Any, attributes: Any) -> Checked:
    data = payload if type(payload) is bytes else _as_bytes("payload", payload)
    size = len(data)
    if key is not None:
        key = key if type(key) is bytes else _as_bytes("key", key)
        size += len(key)
    pairs = None
    if attributes:
        pairs = _as_pairs(attributes)
        size += sum(len(name) + len(value) for name, value in pairs)
    if size > settings.message_bytes_max:
        raise MessageTooLarge(size, settings.message_bytes_max)
    return Checked(data, key, pairs, size + _ROW_BYTES)


def message_rows(settings: WalSettings, messages: Iterable[Any], now_us: int) -> tuple[pa.RecordBatch, int]:
    """Envelope rows (without `_append_time`) of many messages, and their size."""
    checked: list[Checked] = []
    size = 0
    for message in messages:
        one = message if isinstance(message, Outgoing) else Outgoing(message)
        row = checked_message(settings, *one)
        size += row.size_bytes
        if size > settings.batch_bytes_max:
            raise BatchTooLarge(size, settings.batch_bytes_max)
        checked.append(row)
    if not checked:
        raise InvalidInput("there are no messages to publish")
    count = len(checked)
    columns = {
        "_publish_time": constant_times(count, now_us),
        "_key": pa.array([row.key for row in checked], pa.binary()),
        "_attributes": pa.array([row.attributes for row in checked], ENVELOPE.field("_attributes").type),
        "_payload": pa.array([row.payload for row in checked], pa.binary()),
    }
    return _envelope(columns, count), size


def envelope_rows(settings: WalSettings, batch: pa.RecordBatch, now_us: int) -> tuple[pa.RecordBatch, int]:
    """A caller's batch for a message topic: `_payload` and any other envelope columns, in any order."""
    known = {field.name: field for field in ENVELOPE if field.name != "_append_time"}
    columns: dict[str, pa.Array] = {"_publish_time": constant_times(batch.num_rows, now_us)}
    for name in batch.schema.names:
        if name not in known:
            raise SchemaMismatch(f"column {name!r}: a message topic takes only {', '.join(known)}", field=name)
        columns[name] = _cast(name, batch.column(name), known[name].type)
    if "_payload" not in columns:
        raise SchemaMismatch("column '_payload' is missing: a message topic needs it", field="_payload")
    rows, size = checked_batch(settings, _envelope(columns, batch.num_rows))
    _check_longest(settings, rows)
    return rows, size


def typed_rows(settings: WalSettings, batch: pa.RecordBatch, own: pa.Schema) -> tuple[pa.RecordBatch, int]:
    """A caller's batch for a typed topic: the same columns with the same types, in any order."""
    columns = []
    for name in batch.schema.names:
        if name not in own.names:
            raise SchemaMismatch(f"column {name!r} is not in the topic's schema", field=name)
    for field in own:
        if batch.schema.get_field_index(field.name) < 0:
            raise SchemaMismatch(f"column {field.name!r} is missing", field=field.name)
        column = batch.column(field.name)
        if column.type != field.type:
            raise SchemaMismatch(f"column {field.name!r} has type {column.type}, not {field.type}", field=field.name)
        columns.append(column)
    return checked_batch(settings, pa.RecordBatch.from_arrays(columns, schema=own))


def checked_batch(settings: WalSettings, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Bounded, not empty, without a null where none may be, and safe to read: whatever buffers it was made from."""
    if batch.num_rows == 0:
        raise InvalidInput("the batch has no rows")
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaMismatch(f"the batch is not valid Arrow: {error}") from None
    for field, column in zip(batch.schema, batch.columns, strict=True):
        if not field.nullable and column.null_count:
            raise SchemaMismatch(
                f"column {field.name!r} has {column.null_count} nulls and may have none", field=field.name
            )
    size = pa.ipc.get_record_batch_size(batch)
    if size > settings.batch_bytes_max:
        raise BatchTooLarge(size, settings.batch_bytes_max)
    return batch, size


def _envelope(columns: Mapping[str, pa.Array], count: int) -> pa.RecordBatch:
    schema = pa.schema([field for field in ENVELOPE if field.name != "_append_time"])
    arrays = [columns.get(field.name, None) for field in schema]
    filled = [
        pa.nulls(count, field.type) if array is None else array for field, array in zip(schema, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(filled, schema=schema)


def _check_longest(settings: WalSettings, rows: pa.RecordBatch) -> None:
    lengths = pa.compute.max(pa.compute.binary_length(rows.column("_payload"))).as_py()
    if lengths > settings.message_bytes_max:
        raise MessageTooLarge(lengths, settings.message_bytes_max)


def _cast(name: str, column: pa.Array, target: pa.DataType) -> pa.Array:
    if column.type == target:
        return column
    try:
        return column.cast(target)
    except (pa.ArrowException, NotImplementedError) as error:
        raise SchemaMismatch(f"column {name!r} has type {column.type}, not {target} ({error})", field=name) from None


def _as_bytes(field: str, value: Any) -> bytes:
    if isinstance(value, str):
        try:
            return value.encode()
        except UnicodeEncodeError:
            raise InvalidInput(f"{field}: the text is not valid Unicode", field=field) from None
    if isinstance(value, bytes | bytearray | memoryview):
        return bytes(value)
    raise InvalidInput(f"{field} must be bytes or str, not {type(value).__name__}", field=field)


def _as_pairs(attributes: Any) -> list[tuple[str, str]]:
    if not isinstance(attributes, Mapping):
        raise InvalidInput(f"attributes must be a mapping, not {type(attributes).__name__}", field="attributes")
    pairs = list(attributes.items())
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInput(f"attributes must map str to str, got {name!r}: {value!r}", field="attributes")
        _as_bytes("attributes", name)
        _as_bytes("attributes", value)
    return pairs

"""Validation of published messages and batches, completed before anything is queued."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.core.errors import BatchTooLarge, InvalidInput, MessageTooLarge, SchemaMismatch
from frazil.core.put_notes import FewRow
from frazil.core.rows import ENVELOPE, Origin, constant_times, message_batch, nulls
from frazil.core.rows.storable import check_values
from frazil.core.settings import WalSettings
from frazil.log.write.group import MessageRow

_TIME_MIN_US = -62_135_596_800_000_000
_TIME_MAX_US = 253_402_300_799_999_999
_FEW = 32
GIVEN = pa.schema([field for field in ENVELOPE if field.name != "_append_time"])
"""The envelope columns that a caller may provide."""

_ROW_BYTES = 64
"""Queue overhead of a message."""


class Outgoing(NamedTuple):
    """One message for `publish_many`, with more than a payload."""

    payload: bytes | str
    key: bytes | str | None = None
    attributes: Mapping[str, str] | None = None


def checked_message(
    settings: WalSettings, payload: Any, key: Any, attributes: Any, origin: Origin | None = None, extra_bytes: int = 0
) -> tuple[MessageRow, int]:
    """Return a valid message, and its size in the queue.

    `extra_bytes` may exceed the limit: headers that Frazil adds to a message that was within it.
    """
    data = payload if type(payload) is bytes else _as_bytes("payload", payload)
    size = len(data)
    if key is not None:
        key = key if type(key) is bytes else _as_bytes("key", key)
        size += len(key)
    pairs = None
    if attributes:
        pairs, pairs_size = _as_pairs(attributes)
        size += pairs_size
    if size > settings.message_bytes_max + extra_bytes:
        raise MessageTooLarge(size, settings.message_bytes_max)
    return (data, key, pairs, origin), size + _ROW_BYTES


def message_rows(settings: WalSettings, messages: Iterable[Any], now_us: int) -> tuple[pa.RecordBatch, int]:
    """Return the envelope rows (without `_append_time`) of many messages, and their size."""
    rows: list[MessageRow] = []
    total = 0
    for message in messages:
        one = message if isinstance(message, Outgoing) else Outgoing(message)
        row, size = checked_message(settings, *one)
        total += size
        if total > settings.batch_bytes_max:
            raise BatchTooLarge(total, settings.batch_bytes_max)
        rows.append(row)
    if not rows:
        raise InvalidInput("there are no messages to publish")
    payloads, keys, attributes, origins = zip(*rows, strict=True)
    return message_batch(payloads, keys, attributes, origins, now_us).remove_column(0), total


def few_messages(settings: WalSettings, rows: Iterable[FewRow], time_us: int) -> tuple[list[MessageRow], int]:
    """Return a client's few messages in queued form, and their size."""
    if not _TIME_MIN_US <= time_us <= _TIME_MAX_US:
        raise _no_time()
    origin = Origin(publish_time_us=time_us)
    checked = [checked_message(settings, *row, origin) for row in rows]
    if not checked:
        raise InvalidInput("there are no messages to publish")
    return [row for row, _ in checked], sum(size for _, size in checked)


def envelope_rows(settings: WalSettings, batch: pa.RecordBatch, now_us: int) -> tuple[pa.RecordBatch, int]:
    """Validate a caller's batch for a message topic: `_payload` and any other envelope columns, in any order."""
    check_safe(batch)
    rows, size = checked_batch(settings, batch if batch.schema.equals(GIVEN) else _envelope(batch, now_us))
    if size > settings.message_bytes_max:  # otherwise no row can exceed it, and checking each costs more than the rest
        _check_longest(settings, rows)
    if "_publish_time" in batch.schema.names:
        _check_times(rows)
    _check_meaning(rows)
    return rows, size


def typed_rows(settings: WalSettings, batch: pa.RecordBatch, own: pa.Schema) -> tuple[pa.RecordBatch, int]:
    """Validate a caller's batch for a typed topic: the same columns with the same types, in any order."""
    check_safe(batch)
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
    rows = pa.RecordBatch.from_arrays(columns, schema=own)
    check_values(rows)
    return checked_batch(settings, rows)


def check_safe(batch: pa.RecordBatch) -> None:
    """Validate before any read: a batch may have invalid buffers, which Arrow's own code trusts."""
    try:
        batch.validate(full=True)
    except (pa.ArrowException, ValueError) as error:
        raise SchemaMismatch(f"the batch is not valid Arrow: {error}") from None


def checked_batch(settings: WalSettings, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, int]:
    """Check that the batch is within limits, not empty, and without nulls in required columns."""
    if batch.num_rows == 0:
        raise InvalidInput("the batch has no rows")
    for index, field in enumerate(batch.schema):
        if not field.nullable and (count := batch.column(index).null_count):
            raise SchemaMismatch(f"column {field.name!r} has {count} nulls and may have none", field=field.name)
    size = pa.ipc.get_record_batch_size(batch)
    if size > settings.batch_bytes_max:
        raise BatchTooLarge(size, settings.batch_bytes_max)
    return batch, size


def _envelope(batch: pa.RecordBatch, now_us: int) -> pa.RecordBatch:
    """Return all envelope columns, with nulls for those not given."""
    count = batch.num_rows
    known = {field.name: field for field in GIVEN}
    columns: dict[str, pa.Array] = {"_publish_time": constant_times(count, now_us)}
    for name in batch.schema.names:
        if name not in known:
            raise SchemaMismatch(f"column {name!r}: a message topic takes only {', '.join(known)}", field=name)
        if len(batch.schema.get_all_field_indices(name)) > 1:
            raise SchemaMismatch(f"column {name!r} is there more than once", field=name)
        columns[name] = _cast(name, batch.column(name), known[name].type)
    if "_payload" not in columns:
        raise SchemaMismatch("column '_payload' is missing: a message topic needs it", field="_payload")
    arrays = [columns[field.name] if field.name in columns else nulls(count, field.type) for field in GIVEN]
    return pa.RecordBatch.from_arrays(arrays, schema=GIVEN)


def _check_longest(settings: WalSettings, rows: pa.RecordBatch) -> None:
    """Apply the limit of single messages: payload, key and attributes of each row together."""
    sizes = _lengths(rows.column("_payload")) + _lengths(rows.column("_key"))
    attributes = rows.column("_attributes")
    if attributes.null_count < len(attributes):
        totals = np.concatenate([[0], np.cumsum(_lengths(attributes.keys) + _lengths(attributes.items))])
        ends = attributes.offsets.to_numpy()
        sizes += np.diff(totals[ends])
    longest = int(sizes.max())
    if longest > settings.message_bytes_max:
        raise MessageTooLarge(longest, settings.message_bytes_max)


def _check_meaning(rows: pa.RecordBatch) -> None:
    """Refuse values that any of the protocols could not represent."""
    for name in ("_schema_id", "_schema_version"):
        column = rows.column(name)
        if column.null_count < len(column) and pc.min(column).as_py() < 0:
            raise InvalidInput(f"{name}: must not be negative", field=name)
    attributes = rows.column("_attributes")
    if attributes.null_count < len(attributes):
        start, end = attributes.offsets[0].as_py(), attributes.offsets[-1].as_py()
        if attributes.items.slice(start, end - start).null_count:
            raise InvalidInput("_attributes: each needs a value", field="_attributes")


def _check_times(rows: pa.RecordBatch) -> None:
    """Refuse times outside the calendar, which could be stored but never read back."""
    column = rows.column("_publish_time")
    start, end = column.offset * 8, (column.offset + len(column)) * 8
    times = memoryview(column.buffers()[1])[start:end].cast("q")
    lowest, highest = (min(times), max(times)) if len(times) <= _FEW else _extremes(times)
    if lowest < _TIME_MIN_US or highest > _TIME_MAX_US:
        raise _no_time()


def _no_time() -> InvalidInput:
    return InvalidInput("_publish_time must lie in the years 1 to 9999", field="_publish_time")


def _extremes(times: memoryview) -> tuple[int, int]:
    """Minimum and maximum; NumPy has more overhead for a few values."""
    values = np.asarray(times)
    return int(values.min()), int(values.max())


def _lengths(column: pa.Array) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), dtype=np.int64)


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


def _as_pairs(attributes: Any) -> tuple[list[tuple[str, str]], int]:
    """Return the pairs, and their size in UTF-8."""
    if not isinstance(attributes, Mapping):
        raise InvalidInput(f"attributes must be a mapping, not {type(attributes).__name__}", field="attributes")
    pairs = list(attributes.items())
    size = 0
    for name, value in pairs:
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidInput(f"attributes must map str to str, got {name!r}: {value!r}", field="attributes")
        size += len(_as_bytes("attributes", name)) + len(_as_bytes("attributes", value))
    return pairs, size

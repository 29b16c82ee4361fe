"""A checksum of rows that is independent of how they are split into batches, files or row groups.

Each column is a few byte streams in offset order: nulls, value lengths, and values. Each stream has a running CRC-32.
So the log and a compacted table give the same number for the same rows, and the checksums of two adjacent ranges
combine into that of both: a table can carry one checksum of all its rows, however many moves brought them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32, crc32_combine


@dataclass(frozen=True, slots=True)
class ColumnStream:
    """The state of one stream. `start` is the offset of its first row: a column may be added later
    than the log began.
    """

    crc: int
    length: int
    start: int


_NOTHING = np.zeros(0, dtype=np.uint8)

Streams = Mapping[str, ColumnStream]


class RowsChecksum:
    """Rows must be added in offset order, from `start` on."""

    def __init__(self, start: int = 0) -> None:
        self._start = start
        self._crcs: dict[str, int] = {}
        self._lengths: dict[str, int] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        for field, column in zip(rows.schema, rows.columns, strict=True):
            self._add(field.name, column)

    def streams(self) -> dict[str, ColumnStream]:
        return {name: ColumnStream(crc, self._lengths[name], self._start) for name, crc in self._crcs.items()}

    def value(self) -> int:
        return value(self.streams())

    def _add(self, name: str, column: pa.Array) -> None:
        self._feed(f"{name}?", _nulls(column))
        kind = column.type
        if pa.types.is_struct(kind):
            for index in range(kind.num_fields):
                self._add(f"{name}.{kind.field(index).name}", pc.struct_field(column, index))
        elif pa.types.is_map(kind):
            self._feed(f"{name}#", _lengths(column.offsets, column))
            held = _without_nulls(column)
            self._add(f"{name}.key", _within(held.keys, held.offsets))
            self._add(f"{name}.value", _within(held.items, held.offsets))
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._feed(f"{name}#", _lengths(column.offsets, column))
            held = _without_nulls(column)
            self._add(f"{name}.item", _within(held.values, held.offsets))
        elif pa.types.is_null(kind):
            return
        elif _is_bytes(kind):
            self._feed_bytes(name, column)
        else:
            self._feed(name, _fixed(column))

    def _feed_bytes(self, name: str, column: pa.Array) -> None:
        if column.null_count == len(column):
            self._feed(f"{name}#", np.zeros(len(column), dtype=np.int64))
            self._feed(name, _NOTHING)
            return
        if pa.types.is_fixed_size_binary(column.type):
            column = column.cast(pa.binary())
        if column.null_count:
            column = pc.fill_null(column, b"" if "binary" in str(column.type) else "")
        is_large = pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type)
        places = np.frombuffer(column.buffers()[1], dtype=np.int64 if is_large else np.int32)
        places = places[column.offset : column.offset + len(column) + 1]
        self._feed(f"{name}#", np.diff(places).astype(np.int64, copy=False))
        data = column.buffers()[2]
        self._feed(name, _NOTHING if data is None else np.frombuffer(data, dtype=np.uint8)[places[0] : places[-1]])

    def _feed(self, name: str, values: np.ndarray) -> None:
        if not len(values):
            self._crcs.setdefault(name, 0)
            self._lengths.setdefault(name, 0)
            return
        data = np.ascontiguousarray(values).data
        self._crcs[name] = crc32(data, self._crcs.get(name, 0))
        self._lengths[name] = self._lengths.get(name, 0) + data.nbytes


# --- checksums of ranges


def joined(left: Streams, right: Streams) -> dict[str, ColumnStream]:
    """Combine the streams of two adjacent ranges."""
    both = dict(left)
    for name, stream in right.items():
        before = left.get(name)
        both[name] = stream if before is None else _follow(before, stream)
    return both


def value(streams: Streams) -> int:
    """Combine all streams into one number."""
    text = ";".join(f"{name}={stream.crc}" for name, stream in sorted(streams.items()))
    return int(crc32(text.encode()))


def to_text(streams: Streams) -> str:
    """Encode for a table property."""
    return json.dumps({name: [each.crc, each.length, each.start] for name, each in sorted(streams.items())})


def from_text(text: str) -> dict[str, ColumnStream]:
    return {name: ColumnStream(*each) for name, each in json.loads(text).items()}


def _follow(left: ColumnStream, right: ColumnStream) -> ColumnStream:
    crc = crc32_combine(left.crc, right.crc, right.length)
    return ColumnStream(crc, left.length + right.length, left.start)


# --- values as bytes


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _fixed(column: pa.Array) -> np.ndarray:
    """Return the values of a fixed-width column, zero where null, in the widest related type: a
    topic may widen a type.
    """
    kind = column.type
    if pa.types.is_boolean(kind):
        return np.asarray(pc.fill_null(column, False), dtype=np.uint8)
    if pa.types.is_decimal(kind):
        wide = pc.fill_null(column.cast(pa.decimal256(76, kind.scale)), 0)
        return np.frombuffer(wide.buffers()[1], dtype=np.uint8)[wide.offset * 32 : (wide.offset + len(wide)) * 32]
    if pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_temporal(kind):
        column = column.cast(pa.int64())
    values = np.asarray(pc.fill_null(column, 0))
    if values.dtype == np.uint64:
        return values
    return values.astype(np.float64 if values.dtype.kind == "f" else np.int64, copy=False)


def _nulls(column: pa.Array) -> np.ndarray:
    if not column.null_count:
        return np.zeros(len(column), dtype=np.uint8)
    if column.null_count == len(column):
        return np.ones(len(column), dtype=np.uint8)
    return np.asarray(pc.is_null(column), dtype=np.uint8)


def _lengths(offsets: pa.Array, column: pa.Array) -> np.ndarray:
    lengths = np.diff(np.asarray(offsets, dtype=np.int64))
    return np.where(np.asarray(pc.is_null(column)), 0, lengths)


def _without_nulls(column: pa.Array) -> pa.Array:
    """Clear the values below null lists and maps, which are undefined and not kept by tables."""
    return column.drop_null() if column.null_count else column


def _within(values: pa.Array, offsets: pa.Array) -> pa.Array:
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return values.slice(first, last - first)

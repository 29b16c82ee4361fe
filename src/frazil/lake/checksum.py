"""A checksum of rows that does not depend on how they are cut into batches, files or row groups.

Each column keeps running CRC-32s over its values in offset order: what is null, how long each value is, and the
bytes themselves. So the log and a compacted table give the same number for the same rows.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal.isal_zlib import crc32


class RowsChecksum:
    def __init__(self) -> None:
        self._crcs: dict[str, int] = {}

    def add(self, rows: pa.RecordBatch) -> None:
        for field, column in zip(rows.schema, rows.columns, strict=True):
            self._add(field.name, column)

    def value(self) -> int:
        text = ";".join(f"{name}={crc}" for name, crc in sorted(self._crcs.items()))
        return int(crc32(text.encode()))

    def _add(self, name: str, column: pa.Array) -> None:
        self._feed(f"{name}?", np.asarray(pc.is_null(column), dtype=np.uint8))
        kind = column.type
        if pa.types.is_struct(kind):
            for index in range(kind.num_fields):
                self._add(f"{name}.{kind.field(index).name}", pc.struct_field(column, index))
        elif pa.types.is_map(kind):
            self._feed(f"{name}#", _lengths(column.offsets, column))
            keys, items = _within(column.keys, column.offsets), _within(column.items, column.offsets)
            self._add(f"{name}.key", keys)
            self._add(f"{name}.value", items)
        elif pa.types.is_list(kind) or pa.types.is_large_list(kind):
            self._feed(f"{name}#", _lengths(column.offsets, column))
            self._add(f"{name}.item", _within(column.values, column.offsets))
        elif pa.types.is_null(kind):
            return
        elif _is_bytes(kind):
            self._feed_bytes(name, column)
        else:
            self._feed(name, _fixed(column))

    def _feed_bytes(self, name: str, column: pa.Array) -> None:
        large = pc.fill_null(column.cast(pa.large_binary()), b"")
        offsets = np.frombuffer(large.buffers()[1], dtype=np.int64)[large.offset : large.offset + len(large) + 1]
        self._feed(f"{name}#", np.diff(offsets))
        data = large.buffers()[2]
        if data is not None and len(offsets):
            self._feed(name, np.frombuffer(data, dtype=np.uint8)[offsets[0] : offsets[-1]])

    def _feed(self, name: str, values: np.ndarray) -> None:
        self._crcs[name] = crc32(np.ascontiguousarray(values).data, self._crcs.get(name, 0))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    )


def _fixed(column: pa.Array) -> np.ndarray:
    """The values of a fixed-width column, zero where null."""
    kind = column.type
    if pa.types.is_boolean(kind):
        return np.asarray(pc.fill_null(column, False), dtype=np.uint8)
    if pa.types.is_timestamp(kind) or pa.types.is_time64(kind) or pa.types.is_duration(kind):
        column = column.cast(pa.int64())
    elif pa.types.is_date32(kind) or pa.types.is_time32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        return np.frombuffer("".join(f"{value}\0" for value in column.to_pylist()).encode(), dtype=np.uint8)
    return np.asarray(pc.fill_null(column, 0))


def _lengths(offsets: pa.Array, column: pa.Array) -> np.ndarray:
    lengths = np.diff(np.asarray(offsets, dtype=np.int64))
    return np.where(np.asarray(pc.is_null(column)), 0, lengths)


def _within(values: pa.Array, offsets: pa.Array) -> pa.Array:
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return values.slice(first, last - first)

"""Repeats columns of resources, scopes and metrics for each of their rows, within a limit of bytes.

A request of a few megabytes can have a resource of a megabyte and a million spans. Its rows would be a terabyte.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc


class TooManyBytesError(Exception):
    """Rows would have more bytes than the limit: `size_bytes` at least."""

    def __init__(self, size_bytes: int) -> None:
        super().__init__(size_bytes)
        self.size_bytes = size_bytes


class Gather:
    """Takes columns for rows, and counts the bytes that it made."""

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._size_bytes = 0

    def take(self, columns: Mapping[str, pa.Array], rows: np.ndarray) -> dict[str, pa.Array]:
        """Return the columns of the rows. Raise `TooManyBytesError` before the limit is exceeded."""
        sizes = sum((bytes_of(column) for column in columns.values()), np.zeros(1, np.int64))
        if len(rows):
            self._size_bytes += int(sizes[rows].sum())
        if self._size_bytes > self._bytes_max:
            raise TooManyBytesError(self._size_bytes)
        indices = pa.array(rows)
        return {name: column.take(indices) for name, column in columns.items()}


def bytes_of(column: pa.Array) -> np.ndarray:
    """Return the bytes of each row of a column. The column is no slice."""
    kind = column.type
    if pa.types.is_string(kind):
        lengths: np.ndarray = pc.binary_length(column).fill_null(0).to_numpy(zero_copy_only=False)
        return lengths.astype(np.int64) + 4
    if pa.types.is_struct(kind):
        return sum((bytes_of(column.field(index)) for index in range(kind.num_fields)), np.zeros(len(column), np.int64))
    if pa.types.is_map(kind):
        return _of_lists(column.offsets, bytes_of(column.keys) + bytes_of(column.items))
    if pa.types.is_list(kind):
        return _of_lists(column.offsets, bytes_of(column.values))
    return np.full(len(column), 8, np.int64)


def _of_lists(offsets: pa.Int32Array, sizes: np.ndarray) -> np.ndarray:
    before = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=before[1:])
    sums: np.ndarray = np.diff(before[offsets.to_numpy()])
    return sums + 4

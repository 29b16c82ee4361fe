"""Rows that a query can read repeatedly without holding them in memory.

The first few stay in memory, the rest is in a file in the query's temporary folder. The log may delete files while a
query runs, so rows of a log are copied first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from frazil.core.errors import QueryTooLarge

MEMORY_BYTES_MAX = 16 << 20
PIECE_BYTES_MAX = 2 << 20


class Streamed:
    """Rows through `__arrow_c_stream__`, read again for each scan. The sizes are those of the original rows."""

    nbytes = 0
    num_rows = 0

    def __init__(self, schema: pa.Schema, batches: Callable[[], Iterator[pa.RecordBatch]]) -> None:
        self._schema = schema
        self._batches = batches

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)


class TemporarySpace:
    """A folder and the limit of bytes in it."""

    def __init__(self, folder: Path, bytes_max: int) -> None:
        self.folder = folder
        self.bytes_max = bytes_max
        self.used_bytes = 0
        self._files = 0

    @property
    def left_bytes(self) -> int:
        return self.bytes_max - self.used_bytes

    def new_file(self) -> Path:
        self._files += 1
        return self.folder / f"spool-{self._files}.arrow"

    def take(self, size_bytes: int) -> None:
        if size_bytes > self.left_bytes:
            raise QueryTooLarge("temporary space", f"{self.bytes_max >> 20} MiB")
        self.used_bytes += size_bytes


def spool(space: TemporarySpace, schema: pa.Schema, batches: Iterator[pa.RecordBatch]) -> pa.Table | Streamed:
    """Store all rows, in memory if they are few."""
    first: list[pa.RecordBatch] = []
    size_bytes = 0
    for batch in batches:
        size_bytes += batch.nbytes
        if size_bytes > MEMORY_BYTES_MAX:
            return _spooled(space, schema, first, batch, batches)
        first.append(batch)
    return pa.Table.from_batches(first, schema)


def _spooled(
    space: TemporarySpace,
    schema: pa.Schema,
    first: list[pa.RecordBatch],
    next_one: pa.RecordBatch,
    rest: Iterator[pa.RecordBatch],
) -> Streamed:
    path = space.new_file()
    rows, start_bytes = 0, space.used_bytes
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
        for batch in itertools.chain([next_one], rest):
            for piece in _pieces(batch):
                space.take(piece.nbytes)
                writer.write_batch(piece)
                rows += piece.num_rows

    def read() -> Iterator[pa.RecordBatch]:
        yield from first
        with pa.OSFile(str(path), "rb") as file, pa.ipc.open_stream(file) as reader:
            yield from reader

    found = Streamed(schema, read)
    found.nbytes, found.num_rows = space.used_bytes - start_bytes, rows
    return found


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Split into small batches, so that reading them back takes little memory."""
    rows = max(1, batch.num_rows * PIECE_BYTES_MAX // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)

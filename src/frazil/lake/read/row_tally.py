"""Counts and sums of the rows of each offset, whatever their order: enough to compare two sets of rows.

Rows of telemetry are sorted by service and time in their files, and many have the offset of one request. So they are
not read in the order of the log. For each offset of a window a tally has the number of rows, sums of their indices and
of their squares, and the sum of a hash of their columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import duckdb
import numpy as np
import pyarrow as pa

from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET

_MODULUS = "18446744073709551616"
_MEMORY = "512MB"


class RowTally:
    """The rows of a window. Sums are modulo 2^64."""

    def __init__(self, window: OffsetRange, columns: Sequence[str], summed: str | None = None) -> None:
        """`columns` are hashed; `summed` is a column of numbers to add up."""
        self.window = window
        zeros = (np.zeros(len(window), np.uint64) for _ in range(5))
        self.count, self.indices, self.squares, self.hashes, self.total = zeros
        hashed = ", ".join(f'"{name}"' for name in columns)
        more = "0" if summed is None else f'sum("{summed}"::HUGEINT)'
        sums = ("count(*)", "sum(_index::HUGEINT)", "sum(_index::HUGEINT * _index)", f"sum(hash({hashed})::HUGEINT)")
        shown = ", ".join(f"(coalesce({each}, 0) % {_MODULUS})::UBIGINT" for each in (*sums, more))
        self._query = f'select "{OFFSET.name}", {shown} from batch group by 1'  # noqa: S608 - names of our own columns

    def add(self, engine: duckdb.DuckDBPyConnection, batch: pa.RecordBatch) -> None:
        if not batch.num_rows:
            return
        engine.register("batch", pa.Table.from_batches([batch]))
        found = engine.execute(self._query).fetchnumpy()
        offsets, *sums = found.values()
        at = np.asarray(offsets) - self.window.start
        for array, values in zip((self.count, self.indices, self.squares, self.hashes, self.total), sums, strict=True):
            np.add.at(array, at, np.asarray(values, np.uint64))
        engine.unregister("batch")

    def odd_indices(self) -> np.ndarray:
        """Return which offsets have rows whose indices are not 0, 1, 2 and so on, each once."""
        count = self.count
        sums = np.where(count % 2 == 0, (count // 2) * (count - 1), count * ((count - 1) // 2))
        squares = np.array([n * (n - 1) * (2 * n - 1) // 6 for n in _small(count)], np.uint64)[_places(count)]
        wrong: np.ndarray = (self.indices != sums) | (self.squares != squares)
        return wrong


def added(tallies: Mapping[str, RowTally], window: OffsetRange) -> RowTally:
    """Return the tally of all rows of several tables, without hashes."""
    found = RowTally(window, ())
    for tally in tallies.values():
        found.count += tally.count
        found.indices += tally.indices
        found.squares += tally.squares
    return found


def open_engine() -> duckdb.DuckDBPyConnection:
    """Return an engine that reads nothing but what it is given."""
    engine = duckdb.connect()
    engine.execute(f"set memory_limit = '{_MEMORY}'")
    engine.execute("set timezone = 'UTC'")
    engine.execute("set enable_external_access = false")
    return engine


def _small(count: np.ndarray) -> list[int]:
    return [int(n) for n in np.unique(count)]


def _places(count: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.unique(count), count)

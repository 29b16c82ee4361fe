"""The columns that say where a row comes from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa


@dataclass(frozen=True)
class Head:
    """Offset and time of the append of each request."""

    offsets: pa.Int64Array
    append_times: pa.TimestampArray
    partition: int

    def of_requests(self, kept: np.ndarray) -> Head:
        """Return the head of some of the requests."""
        if len(kept) == len(self.offsets):
            return self
        return Head(self.offsets.take(pa.array(kept)), self.append_times.take(pa.array(kept)), self.partition)

    def slice(self, start: int, end: int) -> Head:
        return Head(self.offsets[start:end], self.append_times[start:end], self.partition)

    def columns(self, request: np.ndarray, index: np.ndarray) -> dict[str, pa.Array]:
        """Return the columns of rows, given the request of each and its place in it."""
        rows = pa.array(request)
        return {
            "_offset": self.offsets.take(rows),
            "_topic_partition": self._partitions(len(rows)),
            "_index": pa.array(index.astype(np.int32)),
            "_append_time": self.append_times.take(rows),
        }

    def of_errors(self, rows: pa.Int64Array) -> list[pa.Array]:
        """Return the columns of errors of whole requests."""
        count = len(rows)
        return [
            self.offsets.take(rows),
            self._partitions(count),
            pa.nulls(count, pa.int32()),
            self.append_times.take(rows),
        ]

    def _partitions(self, count: int) -> pa.Int32Array:
        return pa.array(np.full(count, self.partition, np.int32))

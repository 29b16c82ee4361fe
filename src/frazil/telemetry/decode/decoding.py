"""Decodes batches of requests of one signal, in parts of bounded memory."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.telemetry.decode.gather import Gather, TooManyBytesError
from frazil.telemetry.decode.head import Head
from frazil.telemetry.decode.logs import log_rows
from frazil.telemetry.decode.metrics import metric_rows
from frazil.telemetry.decode.traces import trace_rows
from frazil.telemetry.decode.wire import Fault, RefusedError, decoded_requests
from frazil.telemetry.schemas import Lifted, tables_of
from frazil.telemetry.schemas.errors import ERRORS
from frazil.telemetry.signals import Signal

PART_REQUEST_BYTES_MAX = 8 * 2**20
"""Bytes of the requests of a part, unless it is a single request. Spans without content take 160 times as many."""
PART_REPEATED_BYTES_MAX = 256 * 2**20
"""Bytes that the rows of a part may have of their resources, scopes and metrics, unless it is a single request."""
REQUEST_REPEATED_BYTES_MAX = 2**30
"""Bytes that the rows of one request may have of these. A request with more is an error. Arrow's limit is 2^31."""

_Rows = Callable[[pa.ListArray, Head, Gather, Mapping[str, pa.Schema], Sequence[Lifted]], Mapping[str, pa.RecordBatch]]

_ROWS: Mapping[Signal, _Rows] = {
    Signal.TRACES: trace_rows,
    Signal.LOGS: log_rows,
    Signal.METRICS: metric_rows,
}


@dataclass(frozen=True)
class Decoded:
    """Rows by table, without the namespace, and what could not be decoded.

    `rows` has the signal's own table always and the others if they have rows. `errors` has the columns of
    `schemas.errors.ERRORS`, and no row if all is well.
    """

    rows: Mapping[str, pa.RecordBatch]
    errors: pa.RecordBatch


def decode(
    signal: Signal,
    requests: pa.BinaryArray,
    offsets: pa.Int64Array,
    append_times: pa.TimestampArray,
    partition: int = 0,
    lifted: Sequence[Lifted] = (),
) -> Decoded:
    """Decode a few export requests, one per row, given the offset and the time of the append of each.

    All rows are in memory at once: see `decode_parts` for requests of any number and size.
    """
    parts = list(decode_parts(signal, requests, offsets, append_times, partition, lifted))
    if len(parts) == 1:
        return parts[0]
    rows = {}
    for table in tables_of(signal, lifted):
        if found := [part.rows[table] for part in parts if table in part.rows]:
            rows[table] = pa.concat_batches(found)
    return Decoded(rows, pa.concat_batches([part.errors for part in parts]))


def decode_parts(
    signal: Signal,
    requests: pa.BinaryArray,
    offsets: pa.Int64Array,
    append_times: pa.TimestampArray,
    partition: int = 0,
    lifted: Sequence[Lifted] = (),
) -> Iterator[Decoded]:
    """Decode export requests as `decode` does, in parts of bounded memory, in their order. At least one part."""
    assert len(requests) == len(offsets) == len(append_times)
    tables = tables_of(signal, lifted)
    part = _Part(signal, tables, lifted, requests, Head(offsets, append_times, partition))
    starts = _starts(requests)
    for start, end in zip(starts, [*starts[1:], len(requests)], strict=True):
        yield from _bounded(part.slice(start, end))


def _starts(requests: pa.BinaryArray) -> list[int]:
    """Return where parts begin, so that none has too many bytes."""
    ends = np.cumsum(pc.binary_length(requests).to_numpy(zero_copy_only=False), dtype=np.int64)
    starts: list[int] = []
    start, before = 0, 0
    while not starts or start < len(ends):
        starts.append(start)
        start = max(start + 1, int(np.searchsorted(ends, before + PART_REQUEST_BYTES_MAX, "right")))
        before = int(ends[start - 1]) if start <= len(ends) else 0
    return starts


@dataclass(frozen=True)
class _Part:
    """Requests to decode."""

    signal: Signal
    tables: Mapping[str, pa.Schema]
    lifted: Sequence[Lifted]
    requests: pa.BinaryArray
    head: Head

    def slice(self, start: int, end: int) -> _Part:
        if (start, end) == (0, len(self.requests)):
            return self
        requests = self.requests.slice(start, end - start)
        return _Part(self.signal, self.tables, self.lifted, requests, self.head.slice(start, end))

    def decoded(self, repeated_bytes_max: int) -> Decoded:
        """Decode all requests. Raise `TooManyBytesError` if their rows would have too many bytes."""

        def rows_of(resources: pa.ListArray, kept: np.ndarray) -> Mapping[str, pa.RecordBatch]:
            head = self.head.of_requests(kept)
            return _ROWS[self.signal](resources, head, Gather(repeated_bytes_max), self.tables, self.lifted)

        rows, faults = decoded_requests(self.signal, self.requests, rows_of)
        return Decoded(rows, self._errors(faults))

    def refused(self, reason: str) -> Decoded:
        """Return an error for each request."""
        own = self.signal.value
        faults = [Fault(request, reason) for request in range(len(self.requests))]
        return Decoded({own: pa.RecordBatch.from_pylist([], self.tables[own])}, self._errors(faults))

    def _errors(self, faults: Sequence[Fault]) -> pa.RecordBatch:
        rows = pa.array([fault.request for fault in faults], pa.int64())
        reasons = pa.array([fault.reason for fault in faults], pa.string())
        columns = [*self.head.of_errors(rows), reasons, self.requests.take(rows)]
        return pa.RecordBatch.from_arrays(columns, schema=ERRORS)


def _bounded(part: _Part) -> Iterator[Decoded]:
    """Decode a part, in smaller ones if its rows would have too many bytes or one of its requests is refused."""
    count = len(part.requests)
    try:
        yield part.decoded(PART_REPEATED_BYTES_MAX if count > 1 else REQUEST_REPEATED_BYTES_MAX)
    except TooManyBytesError as error:
        if count == 1:
            yield part.refused(
                f"its rows would repeat {error.size_bytes} bytes or more of resources, scopes and metrics, more than "
                f"{REQUEST_REPEATED_BYTES_MAX}"
            )
        else:
            yield from _in_pieces(part, min(count, 1 + error.size_bytes // PART_REPEATED_BYTES_MAX))
    except RefusedError as error:
        if count == 1:
            yield part.refused(str(error))
        else:
            yield from _in_pieces(part, 2)


def _in_pieces(part: _Part, pieces: int) -> Iterator[Decoded]:
    count = len(part.requests)
    for start, end in itertools.pairwise(count * number // pieces for number in range(pieces + 1)):
        yield from _bounded(part.slice(start, end))

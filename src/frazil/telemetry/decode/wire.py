"""Turns the bytes of requests into nested Arrow arrays, and sets requests apart that are not valid.

`protobuf` parses each request first: what it accepts is valid, and nothing else. `ptars` panics at lengths near 2^64,
accepts half a number at the end of a packed field, and counts no levels. Of what is valid it shows all members of a
`oneof` that a request sets one after another, where the last one counts, and it refuses unknown groups in which a field
has the number 0. In these two cases `protobuf` writes the requests of the batch anew, with one member each and without
unknown fields, and they are decoded again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import ptars
import pyarrow as pa
from google.protobuf.message import DecodeError

from frazil.telemetry.decode.descriptors import decoding_descriptor
from frazil.telemetry.requests import REQUESTS
from frazil.telemetry.signals import Signal

Rows = Mapping[str, pa.RecordBatch]


class NotCanonicalError(Exception):
    """A request sets more than one member of a `oneof`."""


class RefusedError(Exception):
    """`ptars` refuses valid requests."""


class Fault(NamedTuple):
    """A request that could not be decoded, by its position in the batch, and the reason."""

    request: int
    reason: str


class RowsOf(Protocol):
    """Makes rows of the resources of requests, given which requests they are."""

    def __call__(self, resources: pa.ListArray, kept: np.ndarray, /) -> Rows: ...


def decoded_requests(signal: Signal, requests: pa.BinaryArray, rows_of: RowsOf) -> tuple[Rows, list[Fault]]:
    """Return the rows of all requests that are valid, and the faults of the others."""
    kept, faults = _valid(signal, requests)
    valid = requests if not faults else requests.take(pa.array(kept))
    try:
        return rows_of(_resources(signal, valid), kept), faults
    except (NotCanonicalError, RefusedError):
        return rows_of(_resources(signal, _canonical(signal, valid)), kept), faults


def _valid(signal: Signal, requests: pa.BinaryArray) -> tuple[np.ndarray, list[Fault]]:
    parse: Callable[[bytes], Any] = REQUESTS[signal].FromString
    kept = []
    faults = []
    for index, raw in enumerate(requests.to_pylist()):
        try:
            parse(raw)
        except DecodeError as error:
            faults.append(Fault(index, str(error)))
        else:
            kept.append(index)
    return np.array(kept, np.int64), faults


def _canonical(signal: Signal, requests: pa.BinaryArray) -> pa.BinaryArray:
    """Return the requests as `protobuf` writes them, without fields that it does not know."""
    written = []
    for raw in requests.to_pylist():
        message = REQUESTS[signal].FromString(raw)
        message.DiscardUnknownFields()
        written.append(message.SerializeToString())
    return pa.array(written, pa.binary())


def _resources(signal: Signal, requests: pa.BinaryArray) -> pa.ListArray:
    """Return the resources of each request, nested. Raise `RefusedError` if `ptars` refuses one, or panics."""
    try:
        return _handler(signal).array_to_record_batch(requests).column(0)
    except ValueError as error:
        raise RefusedError(str(error)) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # no module exports it
            raise
        raise RefusedError(f"panic: {error}") from error


@functools.cache
def _handler(signal: Signal) -> Any:
    descriptor = decoding_descriptor(REQUESTS[signal].DESCRIPTOR)
    return ptars.HandlerPool([descriptor.file]).get_for_message(descriptor)

"""Plain columns: times, unsigned numbers, ids in hexadecimal, names of enumerations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.core.rows import TIME

DAY_US = 86_400_000_000
EVENT_AGE_US_MAX, EVENT_AHEAD_US_MAX = 31 * DAY_US, DAY_US
"""How far the time of an event may be from the append of its request. Else its row gets the time of the append."""

_HEX = np.array([int.from_bytes(b"%02x" % byte, "little") for byte in range(256)], "<u2")


def bits_of(unsigned: pa.UInt64Array) -> pa.Int64Array:
    """Return the 64 bits of unsigned integers as signed ones."""
    return unsigned.view(pa.int64())


def widened(unsigned: pa.UInt32Array) -> pa.Int64Array:
    return unsigned.cast(pa.int64())


def timestamps(nanoseconds: pa.UInt64Array) -> pa.TimestampArray:
    """Return times in microseconds."""
    return _as_times(nanoseconds.to_numpy() // np.uint64(1000))


def event_times(append_times: pa.TimestampArray, *nanoseconds: pa.UInt64Array) -> pa.TimestampArray:
    """Return the first of several times that was sent, in microseconds.

    It is the time of the append if none was sent, or if that time is too far from the append: tables are partitioned by
    these times, and a single request could have rows for any number of partitions.
    """
    first = nanoseconds[0].to_numpy()
    for other in nanoseconds[1:]:
        first = np.where(first == 0, other.to_numpy(), first)
    times = (first // np.uint64(1000)).view(np.int64)
    appended = append_times.view(pa.int64()).to_numpy()
    is_near = (times >= appended - EVENT_AGE_US_MAX) & (times <= appended + EVENT_AHEAD_US_MAX)
    return _as_times(times if is_near.all() else np.where(is_near, times, appended))


def _as_times(microseconds: np.ndarray) -> pa.TimestampArray:
    return pa.array(microseconds.view(np.int64)).view(TIME)


def hex_of(ids: pa.BinaryArray) -> pa.StringArray:
    """Return bytes as lower-case hexadecimal text, whatever their length. The array is no slice."""
    count = len(ids)
    if not count:
        return pa.array([], pa.string())
    _, offsets, data = ids.buffers()
    starts = np.frombuffer(offsets, np.int32, count + 1)
    text = _HEX[np.frombuffer(data or b"", np.uint8, starts[-1])]
    return pa.StringArray.from_buffers(count, pa.py_buffer(starts * 2), pa.py_buffer(text))


def names_of(numbers: pa.Int32Array, names: Sequence[str]) -> pa.StringArray:
    """Return the names of an enumeration; a number without a name is its text."""
    codes = numbers.to_numpy()
    known = (codes >= 0) & (codes < len(names))
    found = pa.array(names, pa.string()).take(pa.array(np.where(known, codes, 0)))
    return found if known.all() else pc.if_else(pa.array(known), found, numbers.cast(pa.string()))

"""The frame of one lone message, without building a batch.

A producer that waits for each acknowledgement sends groups of one. Building and serialising a batch of one row
costs as much as a third of the sync itself, yet for a given payload length only three spans of the Arrow
message ever change: the two times and the payload. They are found once, by comparing serialised batches that
differ in one value, and from then on a message is put together around them. A bare payload only: keys and
attributes take the ordinary way.
"""

from __future__ import annotations

import functools
import struct

from frazil.core.rows import Origin, message_batch

SINGLE_BYTES_MAX = 64 * 1024
"""Beyond this the sync takes so long that building a batch does not show."""

_TIME = struct.Struct("<q")


def single_message(payload: bytes, publish_time_us: int, append_time_us: int) -> bytes:
    """Byte for byte what `message_batch(...).serialize()` gives for one message without key and attributes."""
    head, between, before_payload, tail = _template(len(payload))
    return b"".join(
        (head, _TIME.pack(append_time_us), between, _TIME.pack(publish_time_us), before_payload, payload, tail)
    )


@functools.lru_cache(maxsize=1024)
def _template(length: int) -> tuple[bytes, bytes, bytes, bytes]:
    """The bytes around append time, publish time and payload."""
    base = _serialized(bytes(length), 0, 0)
    append_time = _span(base, _serialized(bytes(length), 0, -1))
    publish_time = _span(base, _serialized(bytes(length), -1, 0))
    payload = _span(base, _serialized(b"\xff" * length, 0, 0)) if length else (len(base), len(base))
    spans = (append_time, publish_time, payload)
    assert [end - start for start, end in spans] == [_TIME.size, _TIME.size, length]
    assert append_time[1] <= publish_time[0] <= publish_time[1] <= payload[0]
    return (
        base[: append_time[0]],
        base[append_time[1] : publish_time[0]],
        base[publish_time[1] : payload[0]],
        base[payload[1] :],
    )


def _serialized(payload: bytes, publish_time_us: int, append_time_us: int) -> bytes:
    origin = Origin(publish_time_us=publish_time_us)
    return bytes(message_batch([payload], [None], [None], [origin], append_time_us).serialize())


def _span(one: bytes, other: bytes) -> tuple[int, int]:
    """Where two messages of equal length differ, from the first byte to the last."""
    differing = [at for at, (left, right) in enumerate(zip(one, other, strict=True)) if left != right]
    return differing[0], differing[-1] + 1

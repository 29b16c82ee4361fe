"""Fast encoding of frames with a few messages, without an Arrow batch.

A producer that waits for each acknowledgement sends groups of a few rows. Arrow converts a few thousand rows as fast as
one: it creates some twenty objects for the envelope's columns, each of which costs far more after the wait for a sync
than in a loop. For the envelope schema, an Arrow message always has the same layout: its header has a fixed length and
differs only in numbers. So the header is taken from Arrow once; afterwards the numbers are set and the columns' bytes
appended.
"""

from __future__ import annotations

import functools
import struct
from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate, chain
from typing import NamedTuple

from frazil.core.rows import Origin, message_batch
from frazil.log.format.frames import pack_rows
from frazil.log.write.group import MessageRow, Part

SMALL_ROWS_MAX = 128
SMALL_ROWS_WITH_ATTRIBUTES_MAX = 48
"""Arrow is as fast beyond this."""
SMALL_BYTES_MAX = 256 * 1024
"""Beyond this size the sync takes so long that building a batch makes no difference."""

_PAIRS_MAX = 16
"""Limits the templates cached for messages with attributes."""

_NODES, _BUFFERS = 11, 26
_COUNTS = struct.Struct(f"<{_NODES * 2}q")
_SPANS = struct.Struct(f"<{_BUFFERS * 2}q")
_NUMBER = struct.Struct("<q")
_HALF = struct.Struct("<i")
_VALUES = (1, 3, 6, 9, 15, 18, 20, 22, 24, 25)
"""The buffers in which one message differs: times, producer, key, keys and items of its attributes, schema, the end
offsets of the payload, and the payload.
"""
_PADDING = tuple(bytes(count) for count in range(8))
_NOTHING = b""
_NO_TEXTS: list[bytes] = []
_NOWHERE = Origin()

Buffers = tuple[bytes, ...]


def small_rows(group: Sequence[Part]) -> Sequence[MessageRow]:
    """Return the messages of a small group; empty if the group is not small."""
    if len(group) == 1:
        rows: Sequence[MessageRow] = group[0].messages
    elif len(group) <= SMALL_ROWS_MAX and all(part.batch is None for part in group):
        rows = [row for part in group for row in part.messages]
    else:
        return ()
    if len(rows) > SMALL_ROWS_WITH_ATTRIBUTES_MAX and rows[0][2] is not None:  # the others usually have the same kind
        return ()
    if len(rows) > SMALL_ROWS_MAX or sum(part.size_bytes for part in group) > SMALL_BYTES_MAX:
        return ()
    return rows


def small_batch(rows: Sequence[MessageRow], append_time_us: int, sent: bytes = b"") -> bytes:
    """Encode byte for byte what `pack_rows(message_batch(...), sent)` gives for these messages."""
    if len(rows) == 1 and len(rows[0][2] or ()) <= _PAIRS_MAX:
        return _one(*rows[0], append_time_us, sent)
    return _few(rows, append_time_us, sent)


# --- one message: the bytes around its values are the same for all messages with columns of the same lengths


def _one(
    payload: bytes,
    key: bytes | None,
    pairs: list[tuple[str, str]] | None,
    origin: Origin | None,
    append_time_us: int,
    sent: bytes,
) -> bytes:
    name, time_us, schema_id, version = origin or _NOWHERE
    producer = None if name is None else name.encode()
    keys, items = (_NO_TEXTS, _NO_TEXTS) if pairs is None else _encoded(pairs)
    body, around = _around(
        None if producer is None else len(producer),
        None if key is None else len(key),
        tuple(map(len, keys)),
        tuple(map(len, items)),
        schema_id is not None,
        version is not None,
        len(sent),
    )
    length = len(payload)
    padding = -length & 7
    values = (
        _NUMBER.pack(body + length + padding),
        sent,
        _NUMBER.pack(length),
        _NUMBER.pack(append_time_us),
        _NUMBER.pack(append_time_us if time_us is None else time_us),
        producer or _NOTHING,
        key or _NOTHING,
        _NOTHING.join(keys),
        _NOTHING.join(items),
        _NUMBER.pack(schema_id or 0),
        _HALF.pack(version or 0),
        _HALF.pack(length),
        payload,
    )
    return b"".join((*chain.from_iterable(zip(around, values, strict=True)), _PADDING[padding]))


@functools.lru_cache(maxsize=1024)
def _around(
    producer: int | None,
    key: int | None,
    keys: tuple[int, ...],
    items: tuple[int, ...],
    has_schema_id: bool,
    has_version: bool,
    sent: int,
) -> tuple[int, tuple[bytes, ...]]:
    """Return the body length without a payload, and the bytes before each value of `_one`, given their lengths."""
    pairs = [("k" * one, "v" * other) for one, other in zip(keys, items, strict=True)]
    origin = Origin(
        None if producer is None else "p" * producer, 0, 0 if has_schema_id else None, 0 if has_version else None
    )
    row = (_NOTHING, None if key is None else bytes(key), pairs or None, origin)
    message, head = _few([row], 0, bytes(sent)), _head(sent)
    spans, body = _layout(_columns([row], 0)[1])
    last_length = head.buffers + _SPANS.size - _NUMBER.size
    places = [(head.body, _NUMBER.size), (head.sent, sent), (last_length, _NUMBER.size)]
    for at in _VALUES:
        places.append((len(head.bytes) + spans[2 * at], spans[2 * at + 1]))
    start, length = places[-2]
    places[-2] = start + _HALF.size, length - _HALF.size  # the first of the payload's two offsets is always zero
    begins = [0, *(start + length for start, length in places)]
    return body, tuple(message[begin:start] for begin, (start, _) in zip(begins, places, strict=False))


def _encoded(pairs: list[tuple[str, str]]) -> tuple[list[bytes], list[bytes]]:
    return [key.encode() for key, _ in pairs], [item.encode() for _, item in pairs]


# --- a few messages


def _few(rows: Sequence[MessageRow], append_time_us: int, sent: bytes) -> bytes:
    head = _head(len(sent))
    counts, buffers = _columns(rows, append_time_us)
    spans, body = _layout(buffers)
    made = bytearray(head.bytes)
    _NUMBER.pack_into(made, head.rows, len(rows))
    _NUMBER.pack_into(made, head.body, body)
    _COUNTS.pack_into(made, head.nodes, *counts)
    _SPANS.pack_into(made, head.buffers, *spans)
    made[head.sent : head.sent + len(sent)] = sent
    return b"".join((made, *chain.from_iterable((buffer, _PADDING[-len(buffer) & 7]) for buffer in buffers)))


def _layout(buffers: Buffers) -> tuple[list[int], int]:
    """Return the start and length of each buffer, and the total length; each starts at a multiple of eight."""
    spans: list[int] = []
    position = 0
    for buffer in buffers:
        length = len(buffer)
        spans += (position, length)
        position += length + (-length & 7)
    return spans, position


def _columns(rows: Sequence[MessageRow], append_time_us: int) -> tuple[tuple[int, ...], Buffers]:
    """Return rows and nulls of each column, and the buffers of all, in schema order."""
    count = len(rows)
    payloads, keys, attributes, origins = zip(*rows, strict=True)
    append_times = publish_times = _NUMBER.pack(append_time_us) * count
    names: Sequence[bytes | None]
    names = ids = versions = (None,) * count
    if origins.count(None) != count:
        texts, times, ids, versions = zip(*(origin or _NOWHERE for origin in origins), strict=True)
        names = [None if name is None else name.encode() for name in texts]
        publish_times = array("q", [append_time_us if time is None else time for time in times]).tobytes()
    no_producers, producers = _texts(names)
    no_keys, key_buffers = _texts(keys)
    pairs, no_attributes, pair_buffers = _maps(attributes)
    no_ids, id_buffers = _numbers("q", ids)
    no_versions, version_buffers = _numbers("i", versions)
    payload_buffers = (_NOTHING, _ends(map(len, payloads)), b"".join(payloads))
    counts = (
        *(count, 0, count, 0, count, no_producers, count, no_keys),
        *(count, no_attributes, pairs, 0, pairs, 0, pairs, 0),
        *(count, no_ids, count, no_versions, count, 0),
    )
    times_buffers = (_NOTHING, append_times, _NOTHING, publish_times)
    return counts, (
        *times_buffers,
        *producers,
        *key_buffers,
        *pair_buffers,
        *id_buffers,
        *version_buffers,
        *payload_buffers,
    )


# --- columns


def _texts(values: Sequence[bytes | None]) -> tuple[int, Buffers]:
    """Return the number of nulls, and the buffers of bytes or UTF-8."""
    nulls = values.count(None)
    if nulls == 0:
        lengths: Iterable[int] = map(len, values)  # type: ignore[arg-type]
        return 0, (_NOTHING, _ends(lengths), b"".join(values))  # type: ignore[arg-type]
    if nulls == len(values):
        return nulls, (_all_null(nulls), bytes(4 * nulls + 4), _NOTHING)
    filled = [value or _NOTHING for value in values]
    return nulls, (_validity(values), _ends(map(len, filled)), b"".join(filled))


def _maps(values: Sequence[list[tuple[str, str]] | None]) -> tuple[int, int, Buffers]:
    """Return the number of pairs, the number of nulls, and the buffers of the maps, their keys and their items."""
    count, nulls = len(values), values.count(None)
    if nulls == count:
        zeros = bytes(4 * nulls + 4)
        return 0, nulls, (_all_null(nulls), zeros, _NOTHING, _NOTHING, zeros, _NOTHING, _NOTHING, zeros, _NOTHING)
    pairs = list(chain.from_iterable(value for value in values if value))
    (_, keys), (_, items) = map(_texts, _encoded(pairs))
    valid = _validity(values) if nulls else _NOTHING
    ends = _ends(len(value) if value else 0 for value in values)
    return len(pairs), nulls, (valid, ends, _NOTHING, *keys, *items)


def _numbers(kind: str, values: Sequence[int | None]) -> tuple[int, Buffers]:
    nulls = values.count(None)
    if nulls == len(values):
        return nulls, (_all_null(nulls), bytes(nulls * array(kind).itemsize))
    valid = _validity(values) if nulls else _NOTHING
    return nulls, (valid, array(kind, [value or 0 for value in values]).tobytes())


def _ends(lengths: Iterable[int]) -> bytes:
    return array("i", accumulate(lengths, initial=0)).tobytes()


def _validity(values: Sequence[object]) -> bytes:
    """One bit for each value, the first one lowest."""
    bits = sum(1 << at for at, value in enumerate(values) if value is not None)
    return bits.to_bytes((len(values) + 7) // 8, "little")


def _all_null(count: int) -> bytes:
    return bytes((count + 7) // 8)


# --- the header


class _Head(NamedTuple):
    """The header of an Arrow message of the envelope, and the positions of its numbers."""

    bytes: bytes
    rows: int
    body: int
    sent: int
    nodes: int
    buffers: int


@functools.lru_cache(maxsize=256)
def _head(sent: int) -> _Head:
    """Locate fields by sentinel values: encode a batch whose row and byte counts occur nowhere else in it.

    The producers' metadata is a text of known length; without it, its position is after the body's length.
    """
    count = 5_003
    text = b"\xff" * sent
    message = bytes(pack_rows(message_batch([b"1"] * count, [None] * count, [None] * count, [None] * count, 0), text))
    counts, buffers = _columns([(b"1", None, None, None)] * count, 0)
    spans, body = _layout(buffers)
    head = message[: len(message) - body]
    at = head.index(_SPANS.pack(*spans))
    body_at = _only(head[:at], _NUMBER.pack(body))
    return _Head(
        head,
        rows=_only(head[:at], _NUMBER.pack(count)),
        body=body_at,
        sent=head.index(text, body_at + _NUMBER.size),
        nodes=head.index(_COUNTS.pack(*counts)),
        buffers=at,
    )


def _only(head: bytes, wanted: bytes) -> int:
    assert head.count(wanted) == 1
    return head.index(wanted)

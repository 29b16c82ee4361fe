"""Notes that clients attach to Arrow batches, or send instead of them, on a stream (Flight's `app_metadata`).

    {"sequence"}                        with an Arrow batch: the sequence of its first row
    {"sequence", "time_us", "rows"}     a few messages; the bytes of their keys and payloads follow
    {"sequence", "bytes"}               a piece of a batch of this total size; part of its Arrow message follows

If callers trace, a note also has "traces": [[row, W3C traceparent], …] by the first row of each.

A note is one line of JSON, optionally followed by bytes. Arrow takes longer to build and to check a single row than a
disk takes to store it, so a few messages are sent without Arrow. Messages on a stream are bounded in size, because a
receiver of many streams needs memory for one message of each.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

MESSAGE_BYTES_MAX = 2 * 1024 * 1024
"""Largest message that a stream takes."""
WHOLE_BYTES_MAX = 1024 * 1024
"""A larger batch is sent in pieces of this size."""
FEW_ROWS_MAX = 32
FEW_BYTES_MAX = 256 * 1024
"""More bytes than this are sent as an Arrow batch, which is as fast at this size."""
TRACES_MAX = 32
"""Caller spans sent with one batch; further ones are dropped."""

_DENSE = json.JSONEncoder(separators=(",", ":"))
_END = b"\n"


class FewRow(NamedTuple):
    """One of a few messages."""

    payload: bytes
    key: bytes | None
    attributes: Mapping[str, str] | None


Traces = Sequence[tuple[int, str]]


def batch_note(sequence: int, traces: Traces = ()) -> bytes:
    return _line(sequence, traces, b"")


def few_note(sequence: int, time_us: int, rows: Sequence[FewRow], traces: Traces = ()) -> bytes:
    lengths = [(len(row.payload), None if row.key is None else len(row.key), row.attributes) for row in rows]
    line = _line(sequence, traces, b',"time_us":%d,"rows":%s' % (time_us, _json(lengths)))
    return b"".join((line, _END, *(piece for row in rows for piece in (row.key or b"", row.payload))))


def piece_notes(sequence: int, message: memoryview, traces: Traces = ()) -> Iterator[bytes]:
    """Split the Arrow message of a batch into consecutive pieces."""
    line = _line(sequence, traces, b',"bytes":%d' % len(message))
    for start in range(0, len(message), WHOLE_BYTES_MAX):
        yield b"".join((line, _END, message[start : start + WHOLE_BYTES_MAX]))


def _line(sequence: int, traces: Traces, more: bytes) -> bytes:
    traced = b',"traces":%s' % _json(traces) if traces else b""
    return b'{"sequence":%d%s%s}' % (sequence, more, traced)


def _json(value: Any) -> bytes:
    return _DENSE.encode(value).encode()


def parted(note: bytes) -> tuple[bytes, memoryview]:
    """Split a note into its line of JSON and the bytes that follow."""
    end = note.find(_END)
    if end < 0:
        return note, memoryview(b"")
    return note[:end], memoryview(note)[end + 1 :]


def few_rows(lengths: Sequence[tuple[int, int | None, Mapping[str, str] | None]], data: memoryview) -> list[FewRow]:
    """Decode the messages of a note; raises `ValueError` if their lengths do not match its bytes."""
    rows, at = [], 0
    for payload_bytes, key_bytes, attributes in lengths:
        middle = at + (key_bytes or 0)
        end = middle + payload_bytes
        key = None if key_bytes is None else bytes(data[at:middle])
        rows.append(FewRow(bytes(data[middle:end]), key, attributes))
        at = end
    if at != len(data):
        raise ValueError(f"rows: they say that {at} bytes follow, and {len(data)} do")
    return rows

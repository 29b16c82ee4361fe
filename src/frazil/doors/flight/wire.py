"""Arrow batches on Flight's wire: the only module that encodes and decodes them.

Arrow would decompress any body, and gRPC accepts any message; so sizes, rows and compression are checked here, before
anything is decoded.
"""

from __future__ import annotations

import json
import struct
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.message import DecodeError

from frazil.core.errors import BatchTooLarge, InvalidInput, SchemaMismatch
from frazil.core.settings import FlightSettings
from frazil.doors.flight.flight_pb2 import FlightData, FlightDescriptor

_PREFIX = struct.Struct("<Ii")
_CONTINUATION = 0xFFFFFFFF
_HEADER_BYTES_MAX = 1024 * 1024
_COPIED_BYTES_MAX = 64 * 1024
"""A smaller body is faster to copy than to read through Python."""
_BODY_TAG = b"\xc2\x3e"
"""Field 1000, bytes: written manually after the others, so that the body is copied once."""

_LENGTH_DELIMITED, _VARINT_BITS = 2, 64
_NO_DATA = InvalidInput("the request is not a valid FlightData", field="request")

_MESSAGE_HEADER, _BATCH_LENGTH, _BATCH_BUFFERS, _BATCH_COMPRESSION = 2, 0, 2, 3
"""Fields of Arrow's flatbuffers, by number."""


# --- to a client


def schema_data(schema: pa.Schema) -> bytes:
    return _data(schema.serialize(), b"")


def batch_data(batch: pa.RecordBatch, note: Any = None) -> bytes:
    return _data(batch.serialize(), b"" if note is None else json.dumps(note).encode())


def note_data(note: Any) -> bytes:
    """Encode a message without rows."""
    return bytes(FlightData(app_metadata=json.dumps(note).encode()).SerializeToString())


def _data(message: pa.Buffer, metadata: bytes) -> bytes:
    view = memoryview(message)
    _, length = _PREFIX.unpack_from(view)
    header, body = view[_PREFIX.size : _PREFIX.size + length], view[_PREFIX.size + length :]
    head = FlightData(data_header=bytes(header), app_metadata=metadata).SerializeToString()
    return b"".join((head, _BODY_TAG, _varint(len(body)), body))


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


# --- from a client


class Received(NamedTuple):
    """One message of a client's stream. `command` and `path` are those of its descriptor."""

    command: bytes
    path: tuple[str, ...]
    header: bytes
    note: bytes
    body: bytes | memoryview
    """A view of the message, which is kept with it: the body of a batch is not copied until the log writes it."""
    size_bytes: int


def received(raw: bytes) -> Received | InvalidInput:
    """Parse a FlightData message manually: Protobuf would copy the body at every access. An invalid message is returned
    as an error, not raised: gRPC would report a server failure."""
    found: dict[int, memoryview] = {}
    view, at = memoryview(raw), 0
    try:
        while at < len(view):
            key, at = _number(view, at)
            length, at = _number(view, at)
            if key & 7 != _LENGTH_DELIMITED or at + length > len(view):
                return _NO_DATA
            found[key >> 3] = view[at : at + length]
            at += length
        command, path = _descriptor(found[1]) if 1 in found else (b"", ())
    except (IndexError, DecodeError):
        return _NO_DATA
    header, note = (bytes(found.get(number, b"")) for number in (2, 3))
    return Received(command, path, header, note, found.get(1000, b""), len(raw))


def _descriptor(raw: memoryview) -> tuple[bytes, tuple[str, ...]]:
    descriptor = FlightDescriptor.FromString(bytes(raw))
    return descriptor.cmd, tuple(descriptor.path)


def _number(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _VARINT_BITS:
        byte = view[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise IndexError


def received_schema(data: Received) -> pa.Schema:
    """Return the schema with which a stream of batches begins."""
    message = _message(data)
    if message.type != "schema":
        raise SchemaMismatch(f"a stream begins with a schema, not with a {message.type}")
    try:
        return pa.ipc.read_schema(message)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise SchemaMismatch(f"the schema is not valid Arrow: {_first_line(error)}") from None


def received_batch(data: Received | bytes, schema: pa.Schema, limits: FlightSettings) -> pa.RecordBatch:
    """Decode one batch within the limits, or the Arrow message of one. The caller must validate its buffers."""
    size_bytes = len(data if isinstance(data, bytes) else data.body)
    if size_bytes > limits.batch_bytes_max:
        raise BatchTooLarge(size_bytes, limits.batch_bytes_max)
    message = _read_message(data) if isinstance(data, bytes) else _message(data)
    if message.type != "record batch":
        raise SchemaMismatch(f"a record batch was due, not a {message.type}")
    rows, buffers_bytes, compressed = _look(message.metadata)
    if compressed:
        raise SchemaMismatch("the batch is compressed; send it without compression")
    if buffers_bytes > message.body.size:  # shared by columns, they would be many times what was sent
        raise SchemaMismatch("the buffers of the batch overlap; send each column its own")
    if not 0 <= rows <= limits.batch_rows_max:
        raise InvalidInput(
            f"the batch has {rows} rows, and may have batch_rows_max = {limits.batch_rows_max}; send smaller batches",
            rows=rows,
            limit_rows=limits.batch_rows_max,
        )
    try:
        return pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowException, ValueError, OSError) as error:
        raise SchemaMismatch(f"the batch is not valid Arrow: {_first_line(error)}") from None


def _message(data: Received) -> pa.ipc.Message:
    """Read as from a stream, which verifies the flatbuffer and that the body is complete."""
    if not 0 < len(data.header) <= _HEADER_BYTES_MAX:
        raise SchemaMismatch(f"an Arrow message has a header of 1 to {_HEADER_BYTES_MAX} bytes, not {len(data.header)}")
    prefix = _PREFIX.pack(_CONTINUATION, len(data.header))
    if len(data.body) <= _COPIED_BYTES_MAX:
        return _read_message(b"".join((prefix, data.header, data.body)))
    return _read_message(pa.PythonFile(_Pieces(prefix, data.header, data.body), "r"))


def _read_message(source: Any) -> pa.ipc.Message:
    try:
        return pa.ipc.read_message(pa.py_buffer(source) if isinstance(source, bytes) else source)
    except (pa.ArrowException, ValueError, OSError, EOFError) as error:
        raise SchemaMismatch(f"the message is not valid Arrow: {_first_line(error)}") from None


class _Pieces:
    """A file of several pieces, of which a whole one is read without a copy."""

    closed = False

    def __init__(self, *pieces: bytes | memoryview) -> None:
        self._pieces = [piece for piece in pieces if piece]

    def read(self, count: int) -> bytes | memoryview:
        if not self._pieces:
            return b""
        piece = self._pieces.pop(0)
        if len(piece) > count:
            self._pieces.insert(0, piece[count:])
            return piece[:count]
        return piece if len(piece) == count else b"".join((piece, self.read(count - len(piece))))


def _look(header: pa.Buffer) -> tuple[int, int, bool]:
    """Return the row count of a batch, and whether its body is compressed. Arrow has verified the flatbuffer."""
    view = memoryview(header)
    try:
        message = struct.unpack_from("<I", view)[0]
        at = _field(view, message, _MESSAGE_HEADER)
        batch = at + struct.unpack_from("<I", view, at)[0]
        length = _field(view, batch, _BATCH_LENGTH)
        rows = struct.unpack_from("<q", view, length)[0] if length else 0
        buffers_bytes = _buffers_bytes(view, _field(view, batch, _BATCH_BUFFERS))
        return rows, buffers_bytes, _field(view, batch, _BATCH_COMPRESSION) != 0
    except struct.error:
        raise SchemaMismatch("the message is not valid Arrow: its header is cut") from None


def _field(view: memoryview, table: int, number: int) -> int:
    """Return the position of a field in a flatbuffer's table; 0 if it has none."""
    vtable = table - struct.unpack_from("<i", view, table)[0]
    slot = 4 + 2 * number
    if slot >= struct.unpack_from("<H", view, vtable)[0]:
        return 0
    offset = struct.unpack_from("<H", view, vtable + slot)[0]
    return table + offset if offset else 0


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]


def _buffers_bytes(view: memoryview, at: int) -> int:
    """Return the total of the vector of (offset, length). Arrow itself refuses a negative length."""
    if not at:
        return 0
    vector = at + struct.unpack_from("<I", view, at)[0]
    count = struct.unpack_from("<I", view, vector)[0]
    places = view[vector + 4 : vector + 4 + 16 * count]
    return sum(max(0, length) for _, length in struct.iter_unpack("<qq", places))

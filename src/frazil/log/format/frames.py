"""The bytes of a segment file; no other module packs or slices them. `docs/formats/log.md` describes the format.

    frame   = [u64 offset][u32 length][u32 crc][payload: one Arrow IPC message]       little-endian
    segment = schema frame, then batch frames and mark frames, then zeros or the end of the file

The CRC-32 covers offset, length and payload. A batch frame's offset is that of its first row. A mark frame holds
Arrow's 8-byte end-of-stream message and means: every row before this offset was on the device before this frame was
written. A sealed segment ends with a mark.

Frames start at multiples of 8 and no payload is empty, so a header of zeros is never a frame.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from isal.isal_zlib import crc32
from typing_extensions import Buffer

from frazil.core.errors import CorruptLog, NewerFormat
from frazil.core.rows import APPEND_TIME
from frazil.core.settings import SyncMode

HEADER_BYTES = 16
ALIGNMENT = 8
FORMAT_VERSION = 1
MARK_PAYLOAD = b"\xff\xff\xff\xff\x00\x00\x00\x00"
MARK_BYTES = HEADER_BYTES + len(MARK_PAYLOAD)

_HEADER = struct.Struct("<QII")
_COVERED = struct.Struct("<QI")
_LENGTH = struct.Struct("<I")
_ARROW_REFUSES = (pa.ArrowException, OSError, ValueError, EOFError, MemoryError)
_KEY_VERSION = b"frazil.format"
_KEY_LOG_ID = b"frazil.log"
_KEY_TOPIC = b"frazil.topic"
_KEY_SYNC_MODE = b"frazil.sync_mode"
_KEY_PRODUCERS = b"frazil.producers"
_KEY_SENT = b"frazil.sent"
_KEY_STORED = b"frazil.stored"
_ROOM_FOR_KEY_BYTES = 256


class Frame(NamedTuple):
    position: int
    offset: int
    payload: memoryview

    @property
    def is_mark(self) -> bool:
        return self.payload == MARK_PAYLOAD

    @property
    def end_position(self) -> int:
        return self.position + HEADER_BYTES + len(self.payload)


class SegmentHead(NamedTuple):
    """The contents of a segment's schema frame."""

    log_id: str
    topic: str
    sync_mode: SyncMode
    schema: pa.Schema


class BadFrame(Exception):
    """There is no valid frame; the message says why. The caller decides whether it is a torn tail or corruption."""


def pack_header(offset: int, payload: Buffer) -> bytes:
    """Pack the header of a frame; the payload supports the buffer protocol."""
    length = memoryview(payload).nbytes
    assert length > 0
    assert length % ALIGNMENT == 0
    crc = crc32(payload, crc32(_COVERED.pack(offset, length)))
    return _HEADER.pack(offset, length, crc)


def pack_mark(offset: int) -> bytes:
    return pack_header(offset, MARK_PAYLOAD) + MARK_PAYLOAD


def pack_head(offset: int, head: SegmentHead, producers: bytes = b"", stored: int = 0) -> bytes:
    """Pack the schema frame, which makes a segment self-describing, with the table of producers if there are any.

    `stored` is for objects: see `stored_offset`.
    """
    metadata = {
        _KEY_VERSION: str(FORMAT_VERSION).encode(),
        _KEY_LOG_ID: head.log_id.encode(),
        _KEY_TOPIC: head.topic.encode(),
        _KEY_SYNC_MODE: head.sync_mode.value.encode(),
    }
    if producers:
        metadata[_KEY_PRODUCERS] = producers
    if stored:
        metadata[_KEY_STORED] = b"%d" % stored
    payload = head.schema.with_metadata(metadata).serialize()
    return pack_header(offset, payload) + bytes(payload)


def pack_rows(rows: pa.RecordBatch, sent: bytes = b"") -> pa.Buffer:
    """Encode a batch as one Arrow message, with its producers in the message's metadata."""
    if not sent:
        return rows.serialize()
    schema_bytes = rows.schema.serialize().size
    room = pa.allocate_buffer(schema_bytes + pa.ipc.get_record_batch_size(rows) + len(sent) + _ROOM_FOR_KEY_BYTES)
    sink = pa.FixedSizeBufferWriter(room)
    writer = pa.ipc.new_stream(sink, rows.schema)  # writes the schema first, which is already in the head
    writer.write_batch(rows, custom_metadata={_KEY_SENT: sent})
    return room.slice(schema_bytes, sink.tell() - schema_bytes)


def frame_claim(data: memoryview, at: int) -> tuple[int, int]:
    """Return offset and payload length from the header at `data[at:]`, without checks."""
    offset, length, _ = _HEADER.unpack_from(data, at)
    return offset, length


def unpack_frame(data: memoryview, at: int, position: int) -> Frame:
    """Read and fully check the frame at `data[at:]`, which is at `position` in its file."""
    if len(data) - at < HEADER_BYTES:
        raise BadFrame(f"{len(data) - at} bytes are left, a header has {HEADER_BYTES}")
    offset, length, crc = _HEADER.unpack_from(data, at)
    start = at + HEADER_BYTES
    if length == 0 or length % ALIGNMENT:
        raise BadFrame(f"the length {length} is not a positive multiple of {ALIGNMENT}")
    if length > len(data) - start:
        raise BadFrame(f"the frame claims {length} bytes, {len(data) - start} are left")
    payload = data[start : start + length]
    if crc32(payload, crc32(data[at : at + _COVERED.size])) != crc:
        raise BadFrame("the checksum does not match")
    return Frame(position, offset, payload)


def unpack_head(path: str, frame: Frame) -> SegmentHead:
    try:
        schema = pa.ipc.read_schema(pa.py_buffer(frame.payload))
    except _ARROW_REFUSES as error:
        raise CorruptLog(path, frame.position, f"the first frame is no Arrow schema ({error})") from None
    metadata = schema.metadata or {}
    version = metadata.get(_KEY_VERSION, b"")
    if version.isdigit() and int(version) > FORMAT_VERSION:
        raise NewerFormat(path, int(version), FORMAT_VERSION)
    if version != str(FORMAT_VERSION).encode():
        raise CorruptLog(path, frame.position, f"format version {version.decode(errors='replace')!r} is not known")
    if APPEND_TIME not in schema:
        raise CorruptLog(path, frame.position, f"the schema has no column {APPEND_TIME.name}")
    try:
        return SegmentHead(
            metadata[_KEY_LOG_ID].decode(),
            metadata[_KEY_TOPIC].decode(),
            SyncMode(metadata[_KEY_SYNC_MODE].decode()),
            schema.remove_metadata(),
        )
    except (KeyError, ValueError) as error:
        raise CorruptLog(path, frame.position, f"the schema frame lacks a valid {error}") from None


def producers_text(frame: Frame) -> bytes:
    """Return the table of producers in a valid schema frame; usually empty, which is checked quickly."""
    if _KEY_PRODUCERS not in bytes(frame.payload):
        return b""
    schema = pa.ipc.read_schema(pa.py_buffer(frame.payload))
    return bytes((schema.metadata or {}).get(_KEY_PRODUCERS, b""))


def stored_offset(frame: Frame) -> int:
    """Return the offset below which all rows of the log were in the object store when this object was made; 0 if none.

    The frame is a valid schema frame.
    """
    schema = pa.ipc.read_schema(pa.py_buffer(frame.payload))
    text = (schema.metadata or {}).get(_KEY_STORED, b"0")
    return int(text) if text.isdigit() else 0


def check_owner(path: str, head: SegmentHead, log_id: str) -> None:
    """Check the log id: a file of another log may be valid in every other way."""
    if head.log_id != log_id:
        raise CorruptLog(path, 0, f"this segment belongs to log {head.log_id} of {head.topic}, not to {log_id}")


def unpack_batch(path: str, frame: Frame, schema: pa.Schema) -> pa.RecordBatch:
    """Decode and fully validate the rows of a frame: a matching checksum does not make Arrow safe to read."""
    try:
        batch = pa.ipc.read_record_batch(pa.py_buffer(frame.payload), schema)
        batch.validate(full=True)
    except _ARROW_REFUSES as error:
        raise CorruptLog(path, frame.position, f"the frame holds no valid Arrow record batch ({error})") from None
    if batch.num_rows == 0:
        raise CorruptLog(path, frame.position, "the frame holds no rows")
    return batch


def sent_text(path: str, frame: Frame, schema: pa.Schema) -> bytes:
    """Return the producers of a valid batch frame; usually empty, which is checked quickly."""
    start = len(MARK_PAYLOAD)
    (metadata_bytes,) = _LENGTH.unpack_from(frame.payload, start - _LENGTH.size)
    if _KEY_SENT not in bytes(frame.payload[start : start + metadata_bytes]):
        return b""
    try:
        stream = pa.ipc.open_stream(pa.py_buffer(schema.serialize().to_pybytes() + frame.payload))
        metadata = stream.read_next_batch_with_custom_metadata().custom_metadata
    except (*_ARROW_REFUSES, StopIteration) as error:
        raise CorruptLog(path, frame.position, f"the frame's metadata cannot be read ({error})") from None
    return b"" if metadata is None else bytes(metadata.get(_KEY_SENT, b""))


def find_frames(data: memoryview, start: int, position: int, offset_min: int) -> list[Frame]:
    """Find every valid frame at or after `data[start:]` with an offset of at least `offset_min`, at any position.

    Whole-array arithmetic filters the positions; only plausible headers are checked.
    """
    start += -(position + start) % ALIGNMENT
    usable = (len(data) - start) // ALIGNMENT * ALIGNMENT
    if usable < MARK_BYTES:
        return []
    words = np.frombuffer(data[start : start + usable], dtype="<u8")
    low = np.uint64(0xFFFFFFFF)
    offsets, lengths, payload_starts = words[:-2], words[1:-1] & low, words[2:] & low
    room = (len(data) - start) - np.arange(len(offsets), dtype=np.uint64) * np.uint64(ALIGNMENT)
    plausible = (
        (offsets >= np.uint64(offset_min))
        & (offsets < np.uint64(2**63))
        & (lengths > 0)
        & (lengths % np.uint64(ALIGNMENT) == 0)
        & (lengths + np.uint64(HEADER_BYTES) <= room)
        & (payload_starts == low)  # every Arrow message begins with four 0xff bytes
    )
    found = []
    for index in np.flatnonzero(plausible):
        at = start + int(index) * ALIGNMENT
        try:
            found.append(unpack_frame(data, at, position + at))
        except BadFrame:
            continue
    return found

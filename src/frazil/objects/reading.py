"""Read rows from objects: record batches of a range, from consecutive objects, each frame checked.

Bytes are requested in growing chunks, with a few chunks in advance once a reader has asked twice. Each request names
the ETag that the object got when it was uploaded, so a replaced object is refused. An object that is missing, cut or
changed raises `ObjectDamaged` with its name and the position; nothing is skipped.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import NamedTuple

from frazil.core.errors import CorruptLog, NewerFormat, ObjectDamaged, ObjectStoreUnavailable
from frazil.core.settings import KIB, MIB
from frazil.core.stored_objects import StoredObject
from frazil.log.format.frames import (
    HEADER_BYTES,
    BadFrame,
    Frame,
    check_owner,
    frame_claim,
    unpack_batch,
    unpack_frame,
    unpack_head,
)
from frazil.log.read.segment_reader import StoredBatch, append_times_us
from frazil.objects.names import ObjectName
from frazil.objects.store import ObjectChanged, ObjectMissing, ObjectStore

CHUNK_FIRST_BYTES = 256 * KIB
CHUNK_MAX_BYTES = 4 * MIB
AHEAD_MAX = 2
"""Chunks that are requested before they are needed, by each reader."""
REQUESTS_MAX = 16

REQUESTS = ThreadPoolExecutor(REQUESTS_MAX, "frazil-objects")
"""For chunks in advance, of all readers together; a reader's first chunk is read by its own thread."""


def name_of(one: StoredObject) -> str:
    return str(ObjectName(one.log_id, one.epoch, one.first))


class ObjectReader:
    """The batches of consecutive objects from an offset on, as they were stored. Not thread-safe.

    `offset` is the start of the next batch. The first batch may begin before the requested offset.
    """

    def __init__(self, store: ObjectStore, objects: Sequence[StoredObject], start: int) -> None:
        assert objects
        assert objects[0].first <= start < objects[0].end, (objects[0], start)
        self._chunks = _Chunks(store, objects)
        self._objects = iter(objects)
        self._open: _OpenObject | None = None
        self.offset = start

    def __iter__(self) -> Iterator[StoredBatch]:
        return self

    def __next__(self) -> StoredBatch:
        if self._open is None or self._open.is_at_end:
            self._open = None
            one = next(self._objects, None)
            if one is None:
                raise StopIteration
            assert one.first <= self.offset
            self._open = _OpenObject(one, self._chunks)
        batch = self._open.batch_at(self.offset)
        self.offset = batch.end
        return batch

    def close(self) -> None:
        self._chunks.close()


def read_bytes(store: ObjectStore, one: StoredObject, start: int, length: int) -> bytes:
    """Return a part of an object; raises `ObjectDamaged` if it is not there as it was uploaded."""
    name = name_of(one)
    try:
        found = store.get_range(name, start, length, etag=one.etag)
    except ObjectMissing:
        raise ObjectDamaged(name, start, "the object is missing from its store") from None
    except ObjectChanged:
        raise ObjectDamaged(name, start, f"the object was replaced: its ETag is no longer {one.etag}") from None
    except ObjectStoreUnavailable:
        _check_size(store, one, start)  # a request beyond the end of a cut object fails differently in each store
        raise
    if len(found) != length:
        raise ObjectDamaged(name, start, f"the object was cut: {length} bytes belong here, and it has {len(found)}")
    return found


def first_time_us(store: ObjectStore, one: StoredObject) -> int:
    """Return the append time of an object's first row, by reading it if it is not known."""
    if one.first_time_us is not None:
        return one.first_time_us
    reader = ObjectReader(store, (one,), one.first)
    try:
        return int(append_times_us(next(reader).rows)[0])
    finally:
        reader.close()


class _Chunk(NamedTuple):
    one: StoredObject
    position: int
    length: int


class _Chunks:
    """The bytes of the objects, in order."""

    def __init__(self, store: ObjectStore, objects: Sequence[StoredObject]) -> None:
        self._store = store
        self._planned = _plan(objects)
        self._ahead: deque[Future[bytes]] = deque()
        self._is_first = True

    def next(self) -> bytes:
        """Return the next chunk. The caller asks for no more than the objects have."""
        if self._is_first:
            self._is_first = False
            return self._read(next(self._planned))
        while len(self._ahead) <= AHEAD_MAX and (chunk := next(self._planned, None)) is not None:
            self._ahead.append(REQUESTS.submit(self._read, chunk))
        return self._ahead.popleft().result()

    def close(self) -> None:
        for request in self._ahead:
            request.cancel()
        self._ahead.clear()
        self._planned = iter(())

    def _read(self, chunk: _Chunk) -> bytes:
        return read_bytes(self._store, *chunk)


def _plan(objects: Sequence[StoredObject]) -> Iterator[_Chunk]:
    length = CHUNK_FIRST_BYTES
    for one in objects:
        position = 0
        while position < one.size_bytes:
            chunk = _Chunk(one, position, min(length, one.size_bytes - position))
            yield chunk
            position += chunk.length
            length = min(length * 4, CHUNK_MAX_BYTES)


class _OpenObject:
    """The frames of one object."""

    def __init__(self, one: StoredObject, chunks: _Chunks) -> None:
        self._one = one
        self._name = name_of(one)
        self._chunks = chunks
        self._held = memoryview(b"")
        self._held_at = self._position = 0
        """Where the held bytes begin in the object, and where the next frame begins."""
        self.is_at_end = False
        with self._named():
            frame = self._next()
            if frame.offset != one.first:
                raise self._damaged(0, f"it begins at offset {frame.offset}, not where its name says")
            head = unpack_head(self._name, frame)
            check_owner(self._name, head, one.log_id)
        self._schema = head.schema

    def batch_at(self, offset: int) -> StoredBatch:
        """Return the batch that holds an offset, which is the next one's or behind it."""
        while True:
            frame = self._next()
            if frame.is_mark or (not self._is_last(frame) and self._claim()[0] <= offset):
                continue
            with self._named():
                batch = StoredBatch(frame.offset, unpack_batch(self._name, frame, self._schema), frame.position)
            if not batch.offset <= offset < batch.end <= self._one.end:
                raise self._damaged(frame.position, f"rows {batch.offset} up to {batch.end} where {offset} belongs")
            if batch.end == self._one.end:
                self._close_mark()
            return batch

    def _close_mark(self) -> None:
        """Check that the object ends with a mark at its last offset: nothing was cut off or added."""
        self.is_at_end = True
        frame: Frame | None = None
        while self._position < self._one.size_bytes:
            frame = self._next()
            if not frame.is_mark or frame.offset != self._one.end:
                raise self._damaged(frame.position, f"a frame follows at offset {frame.offset}, beyond the end")
        if frame is None:
            raise self._damaged(self._position, "the object has no closing mark")

    def _is_last(self, frame: Frame) -> bool:
        return frame.end_position >= self._one.size_bytes

    def _next(self) -> Frame:
        _, length = self._claim()
        self._have(HEADER_BYTES + length)
        try:
            frame = unpack_frame(self._held, self._position - self._held_at, self._position)
        except BadFrame as error:
            raise self._damaged(self._position, str(error)) from None
        self._position = frame.end_position
        return frame

    def _claim(self) -> tuple[int, int]:
        """Return offset and length that the next header claims; the length is within the object."""
        left = self._one.size_bytes - self._position
        if left < HEADER_BYTES:
            raise self._damaged(self._position, f"{left} bytes are left, a header has {HEADER_BYTES}")
        self._have(HEADER_BYTES)
        offset, length = frame_claim(self._held, self._position - self._held_at)
        if length > left - HEADER_BYTES:
            raise self._damaged(self._position, f"the frame claims {length} bytes, {left - HEADER_BYTES} are left")
        return offset, length

    def _have(self, count: int) -> None:
        """Hold `count` bytes from the next frame on. The object has as many."""
        held = self._held[self._position - self._held_at :]
        if len(held) >= count:
            return
        parts, size = [held], len(held)
        while size < count:
            parts.append(memoryview(self._chunks.next()))
            size += len(parts[-1])
        self._held = parts[1] if not held and len(parts) == 2 else memoryview(b"".join(parts))
        self._held_at = self._position

    def _damaged(self, position: int, why: str) -> ObjectDamaged:
        return ObjectDamaged(self._name, position, why)

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """A frame that can't be decoded is a damaged object."""
        try:
            yield
        except (ObjectDamaged, NewerFormat):
            raise
        except CorruptLog as error:
            raise self._damaged(int(error.fields["position"]), str(error.fields["reason"])) from None


def _check_size(store: ObjectStore, one: StoredObject, position: int) -> None:
    try:
        size = store.head(name_of(one)).size_bytes
    except (ObjectMissing, ObjectStoreUnavailable):
        return  # what the request itself met is reported
    if size != one.size_bytes:
        why = f"the object was cut or replaced: it has {size} bytes, not {one.size_bytes}"
        raise ObjectDamaged(name_of(one), position, why)

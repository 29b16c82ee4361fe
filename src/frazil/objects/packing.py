"""The bytes of an object, which are those of a small segment file: a schema frame, batch frames, a closing mark.

The frames of a segment are copied as they are, with their checksums. An object that is not a whole segment gets a
schema frame of its own, with the state of the producers at its first offset. So each object explains itself, and a log
can continue after any of them. The closing mark says where the object ends; an object that was cut lacks it.

A fence is an object without rows that takes the next name of an epoch. So it ends the epoch, for its owner too: the
store refuses what a former owner puts there, and the fence says which epoch follows, and whose it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import pyarrow as pa
from typing_extensions import Buffer

from frazil.core.errors import CorruptLog, ObjectDamaged
from frazil.log.format.frames import (
    MARK_BYTES,
    BadFrame,
    SegmentHead,
    pack_head,
    pack_header,
    pack_mark,
    stored_offset,
    unpack_frame,
)

FENCE_BYTES_MAX = 16 * 1024
"""A larger object is no fence."""
_KEY_FENCE = b"frazil.fence"


@dataclass(frozen=True, slots=True)
class Fence:
    """The end of an epoch: from its offset on the log belongs to `owner`, in the given epoch."""

    epoch: int
    owner: str
    first: int
    """Where the epoch begins: the fence's own offset, unless no rows were uploaded before, or a loss was accepted."""
    claim: str
    """Unique for each claim, so that two processes of one owner do not confuse their fences."""
    address: str = ""
    topic: str = ""
    """The name of the topic, so that the topics can be found from a listing of the store alone."""
    ack: str = ""
    """The ack level of the topic, if it is `object`."""


def pack_object(
    first: int, end: int, head: SegmentHead, producers: bytes, frames: Sequence[Buffer], *, stored: int = 0
) -> list[Buffer]:
    """Pack the frames with the rows from `first` up to `end`. `producers` is their state at `first`.

    Rows below `stored` were in the store before. Several objects of a log travel at once, so a crash may leave some
    behind a hole: a hole at or above `stored` of the last one is no damage.
    """
    return [pack_head(first, head, producers, stored), *frames, pack_mark(end)]


def stored_before(content: bytes) -> int:
    """Return the offset below which all rows were in the store when this object was made, by its first bytes."""
    return stored_offset(unpack_frame(memoryview(content), 0, 0))


def pack_fence(offset: int, fence: Fence) -> bytes:
    text = json.dumps(asdict(fence), sort_keys=True).encode()
    payload = pa.schema([], metadata={_KEY_FENCE: text}).serialize()
    return pack_header(offset, payload) + bytes(payload) + pack_mark(offset)


def unpack_fence(content: bytes) -> Fence | None:
    """Return the fence that an object is; None if it is an ordinary object."""
    try:
        frame = unpack_frame(memoryview(content), 0, 0)
        metadata = pa.ipc.read_schema(pa.py_buffer(frame.payload)).metadata or {}
        if _KEY_FENCE not in metadata:
            return None
        values = json.loads(metadata[_KEY_FENCE])
        own = str(values["owner"]), int(values["first"]), str(values["claim"]), str(values["address"])
        return Fence(int(values["epoch"]), *own, str(values["topic"]), str(values.get("ack", "")))
    except (BadFrame, pa.ArrowException, OSError, ValueError, KeyError, TypeError):
        return None  # reading it as a segment reports what is wrong with it


def end_of_object(name: str, tail: bytes, size_bytes: int) -> int:
    """Return the offset where an object ends, by its last bytes; raises `ObjectDamaged` if it was cut."""
    position = size_bytes - MARK_BYTES
    try:
        mark = unpack_frame(memoryview(tail)[-MARK_BYTES:], 0, position)
    except (BadFrame, CorruptLog) as error:
        raise ObjectDamaged(name, max(0, position), f"the closing mark is missing ({error})") from None
    if not mark.is_mark:
        raise ObjectDamaged(name, max(0, position), "the object has no closing mark")
    return mark.offset

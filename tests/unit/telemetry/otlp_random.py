"""Random requests: any fields, any values, and bytes that are valid though no library writes them so."""

from __future__ import annotations

import random
import struct
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from frazil.telemetry.requests import REQUESTS
from frazil.telemetry.signals import Signal

DEPTH_MAX = 9
KEYS = ["", "a", "b", "service.name", "é", "key", "bytesValue", "kvlistValue", "doubleValue", "x" * 40]
TEXTS = ["", "a", "\0", "text", "日本語", "🙂", '"quoted"\\', "\ud7ff", "true", "1", "{}", "null", "é" * 50]
INTS_64 = [0, 1, -1, 2**63 - 1, -(2**63), 2**53 + 1, 1_700_000_000_123_456_789]
APPEND_NS = 1_767_323_045_000_006_000
DAY_NS = 86_400_000_000_000
TIMES = [APPEND_NS + 123, APPEND_NS - 31 * DAY_NS, APPEND_NS - 32 * DAY_NS, APPEND_NS + DAY_NS, APPEND_NS + 2 * DAY_NS]
"""At the limits of what a row's `timestamp` may be, and beyond."""
UINTS_64 = [0, 1, 2**63, 2**64 - 1, 2**63 - 1, 1_700_000_000_123_456_789, 999, *TIMES]
DOUBLES = [0.0, -0.0, 1.0, 0.1, float("nan"), float("inf"), float("-inf"), 5e-324, 1.7976931348623157e308, 1e16, 1e22]
BLOBS = [b"", b"\0", bytes(16), bytes(range(16)), bytes(range(8)), b"\xff" * 3, bytes(range(256))]
INTEGERS = {
    FieldDescriptor.TYPE_INT64: INTS_64,
    FieldDescriptor.TYPE_SFIXED64: INTS_64,
    FieldDescriptor.TYPE_UINT64: UINTS_64,
    FieldDescriptor.TYPE_FIXED64: UINTS_64,
    FieldDescriptor.TYPE_INT32: [0, 1, -1, 2**31 - 1, -(2**31)],
    FieldDescriptor.TYPE_SINT32: [0, 1, -1, 2**31 - 1, -(2**31)],
    FieldDescriptor.TYPE_UINT32: [0, 1, 2**31, 2**32 - 1],
    FieldDescriptor.TYPE_FIXED32: [0, 1, 2**31, 2**32 - 1],
    FieldDescriptor.TYPE_ENUM: [0, 1, 2, 3, 5, 6, 24, 99, -1, 2**31 - 1],
}


def random_request(signal: Signal, rng: random.Random) -> Message:
    return _filled(REQUESTS[signal](), rng, 0, rng.choice([0.2, 0.6, 0.95]))


def _filled(message: Message, rng: random.Random, depth: int, share: float) -> Message:
    chosen = {one.name: rng.choice([None, *one.fields]) for one in message.DESCRIPTOR.oneofs}
    for field in message.DESCRIPTOR.fields:
        if field.name == "key_strindex":
            continue  # of profiles: not stored
        oneof = field.containing_oneof
        if (oneof is not None and chosen[oneof.name] is not field) or (oneof is None and rng.random() > share):
            continue
        if field.message_type is None:
            _set_scalar(message, field, rng)
        elif field.is_repeated:
            for _ in range(rng.choice([0, 1, 1, 2, 4]) if depth < DEPTH_MAX else 0):
                _filled(getattr(message, field.name).add(), rng, depth + 1, share)
        else:
            getattr(message, field.name).SetInParent()
            if depth < DEPTH_MAX:
                _filled(getattr(message, field.name), rng, depth + 1, share)
    return message


def _set_scalar(message: Message, field: FieldDescriptor, rng: random.Random) -> None:
    if field.is_repeated:
        getattr(message, field.name).extend(_scalar(field, rng) for _ in range(rng.choice([0, 1, 3, 160])))
    else:
        setattr(message, field.name, _scalar(field, rng))


def _scalar(field: FieldDescriptor, rng: random.Random) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return rng.choice(KEYS if field.name == "key" else TEXTS)
        case FieldDescriptor.TYPE_BYTES:
            return rng.choice(BLOBS)
        case FieldDescriptor.TYPE_DOUBLE:
            return rng.choice([*DOUBLES, struct.unpack("<d", rng.randbytes(8))[0], rng.random()])
        case FieldDescriptor.TYPE_BOOL:
            return rng.random() < 0.5
        case kind:
            return rng.choice(INTEGERS[kind])


UNKNOWN = [
    b"\xf8\x7f\x05",  # field 2047, a number
    b"\xfa\x7f\x02ab",  # bytes
    b"\xf9\x7f" + bytes(8),
    b"\xfd\x7f" + bytes(4),
    b"\xfb\x7f\x08\x01\xfc\x7f",  # a group
]


def oddly_written(message: Message, rng: random.Random) -> bytes:
    """Bytes that mean something, and that no library writes: fields in any order, repeated, in several parts, unpacked.

    They need not mean the same as the message.
    """
    parts = []
    for field, value in message.ListFields():
        values = list(value) if field.is_repeated else [value]
        if field.message_type is not None:
            for one in values:
                whole = oddly_written(one, rng)
                parts.append(_delimited(field.number, whole, rng))
                if not field.is_repeated and rng.random() < 0.3:  # merged with the first part
                    parts.append(_delimited(field.number, oddly_written(one, rng), rng))
        else:
            parts.append(_scalars(field, values, rng))
            if rng.random() < 0.2:  # the last one counts; of a repeated one, all do
                parts.append(_scalars(field, [_scalar(field, rng) for _ in values], rng))
        others = [one for one in field.containing_oneof.fields if one is not field] if field.containing_oneof else []
        if others and rng.random() < 0.1:
            parts.append(_other_member(type(message), rng.choice(others), rng))
    if rng.random() < 0.1:
        parts.append(rng.choice(UNKNOWN))
    rng.shuffle(parts)
    return b"".join(parts)


def _other_member(kind: type[Message], field: FieldDescriptor, rng: random.Random) -> bytes:
    message = kind()
    if field.message_type is None:
        setattr(message, field.name, _scalar(field, rng))
    else:
        _filled(getattr(message, field.name), rng, DEPTH_MAX - 1, 0.5)
        getattr(message, field.name).SetInParent()
    return message.SerializeToString()


def _scalars(field: FieldDescriptor, values: list[Any], rng: random.Random) -> bytes:
    """Packed or not, as it comes: a parser takes both."""
    encoded = [_encoded(field, value, rng) for value in values]
    wire_type = _wire_type(field)
    if field.is_repeated and wire_type != 2 and rng.random() < 0.5:
        return _delimited(field.number, b"".join(encoded), rng)
    if wire_type == 2:
        return b"".join(_delimited(field.number, one, rng) for one in encoded)
    tag = _varint(field.number << 3 | wire_type, rng)
    return b"".join(tag + one for one in encoded)


def _wire_type(field: FieldDescriptor) -> int:
    match field.type:
        case FieldDescriptor.TYPE_STRING | FieldDescriptor.TYPE_BYTES:
            return 2
        case FieldDescriptor.TYPE_DOUBLE | FieldDescriptor.TYPE_FIXED64 | FieldDescriptor.TYPE_SFIXED64:
            return 1
        case FieldDescriptor.TYPE_FIXED32:
            return 5
        case _:
            return 0


def _encoded(field: FieldDescriptor, value: Any, rng: random.Random) -> bytes:
    match field.type:
        case FieldDescriptor.TYPE_STRING:
            return value.encode()
        case FieldDescriptor.TYPE_BYTES:
            return value
        case FieldDescriptor.TYPE_DOUBLE:
            return struct.pack("<d", value)
        case FieldDescriptor.TYPE_FIXED64:
            return struct.pack("<Q", value)
        case FieldDescriptor.TYPE_SFIXED64:
            return struct.pack("<q", value)
        case FieldDescriptor.TYPE_FIXED32:
            return struct.pack("<I", value)
        case FieldDescriptor.TYPE_SINT32:
            return _varint((value << 1) ^ (value >> 31), rng)
        case FieldDescriptor.TYPE_UINT32 | FieldDescriptor.TYPE_INT32 | FieldDescriptor.TYPE_ENUM:
            above = rng.choice([0, 0, 0, 2**40])  # bits above the 32 are dropped
            return _varint((value % 2**64) ^ above, rng)
        case FieldDescriptor.TYPE_BOOL:
            return _varint(rng.choice([1, 2, 2**35]) if value else 0, rng)
        case _:
            return _varint(value % 2**64, rng)


def _delimited(number: int, data: bytes, rng: random.Random) -> bytes:
    return _varint(number << 3 | 2, rng) + _varint(len(data), rng) + data


def _varint(value: int, rng: random.Random) -> bytes:
    """Sometimes with more bytes than are needed."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    if len(out) < 5 and rng.random() < 0.05:
        out[-1] |= 0x80
        out.append(0)
    return bytes(out)


def damaged(raw: bytes, rng: random.Random) -> bytes:
    """The bytes with some bits flipped, cut off, or with some left out or added."""
    if not raw:
        return rng.randbytes(rng.randrange(20))
    changed = bytearray(raw)
    for _ in range(rng.choice([1, 1, 2, 8])):
        match rng.randrange(5):
            case 0:
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            case 1:
                del changed[rng.randrange(len(changed)) :]
            case 2:
                at = rng.randrange(len(changed))
                del changed[at : at + rng.randrange(9)]
            case 3:
                at = rng.randrange(len(changed))
                changed[at:at] = rng.randbytes(rng.randrange(9))
            case _:
                at = rng.randrange(len(changed))
                changed[at : at + 1] = b"\xff" * rng.randrange(12)
        if not changed:
            break
    return bytes(changed)

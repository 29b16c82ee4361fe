"""The bytes of Protobuf: the fields of a message without parsing it, and numbers and values as they are written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from frazil.core.errors import InvalidInput

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Types of fields on the wire."""
_FIXED = {FIXED64: 8, FIXED32: 4}
_VARINT_LENGTH_MAX, _KEY_LENGTH_MAX = 10, 5
"""Bytes of a number, and of one that precedes a value: `protobuf` refuses more, also if they add nothing."""
_KEY_END = 2**32


class Field(NamedTuple):
    """A field of a message, by its bytes: all of it, and its value."""

    number: int
    wire_type: int
    start: int
    value: int
    end: int


def fields_of(data: bytes | memoryview, start: int, end: int) -> Iterator[Field]:
    """Return the fields of a message; raises `InvalidInput` for malformed bytes."""
    at = start
    while at < end:
        key, value = _read_varint(data, at, end, _KEY_LENGTH_MAX)
        number, wire_type = key >> 3, key & 7
        if number == 0 or key >= _KEY_END:
            raise invalid_request(f"a field has the number {number}")
        if wire_type == BYTES:
            size, value = _read_varint(data, value, end, _KEY_LENGTH_MAX)
            stop = value + size
        elif wire_type == VARINT:
            stop = _read_varint(data, value, end)[1]
        elif wire_type in _FIXED:
            stop = value + _FIXED[wire_type]
        else:
            raise invalid_request(f"the field {number} has the wire type {wire_type}")
        if stop > end:
            raise invalid_request(f"the field {number} is cut")
        yield Field(number, wire_type, at, value, stop)
        at = stop


def _read_varint(data: bytes | memoryview, at: int, end: int, length_max: int = _VARINT_LENGTH_MAX) -> tuple[int, int]:
    """Return a number, and where it ends."""
    first = data[at] if at < end else -1
    if 0 <= first < 128:
        return first, at + 1
    found = shift = 0
    for position in range(at, min(end, at + length_max)):
        byte = data[position]
        found |= (byte & 127) << shift
        if byte < 128:
            return found, position + 1
        shift += 7
    raise invalid_request("a number is cut, or too long")


def tag(number: int, wire_type: int) -> bytes:
    """Return what precedes the value of a field."""
    return varint(number << 3 | wire_type)


def varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    found.append(value)
    return bytes(found)


def sized(value: bytes) -> bytes:
    """Return a value of text, bytes or a message, after its length."""
    return varint(len(value)) + value


def invalid_request(reason: str) -> InvalidInput:
    return InvalidInput(f"the request is not valid Protobuf of OTLP: {reason:.200}", field="request")

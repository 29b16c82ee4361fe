"""Export requests in JSON as Protobuf: OTLP's own mapping, in which ids are hexadecimal and enums are numbers.

Names are in lowerCamelCase. Other names are ignored, as newer senders have fields that this server does not know.
Numbers of 64 bits are texts or numbers. What is nested deeper than Protobuf allows is refused when the result is
parsed.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

from google.protobuf.descriptor import FieldDescriptor as Kind
from pydantic_core import from_json

from frazil.core.errors import InvalidInput
from frazil.telemetry.protobuf_bytes import BYTES, FIXED32, FIXED64, VARINT, sized, tag, varint
from frazil.telemetry.requests import REQUESTS
from frazil.telemetry.signals import Signal

OBJECTS_MAX = 1_000_000
"""Opening braces of a request, also those in texts. An empty object takes 40 times its size in memory."""
_HEX = frozenset({"trace_id", "span_id", "parent_span_id"})
_DOUBLE, _UINT32, _UINT64, _INT64 = (struct.Struct(f"<{code}") for code in "dIQq")
_WORD = 2**64

Pack = Callable[[Any], bytes]
"""Encodes one value, without its tag."""


def protobuf_of(signal: Signal, content: bytes) -> bytes:
    """Return the request as Protobuf; raises `InvalidInput` that names the field."""
    if content.count(b"{") > OBJECTS_MAX:
        raise InvalidInput(f"the request has more than {OBJECTS_MAX} objects; send smaller ones", field="request")
    try:
        found = from_json(content)
    except ValueError as error:
        raise InvalidInput(f"the request is not valid JSON: {error!s:.200}", field="request") from None
    if not isinstance(found, dict):
        raise _wrong("request", "an object")
    return _message(REQUESTS[signal].DESCRIPTOR, found)


class _FieldCode(NamedTuple):
    """How a field is encoded."""

    name: str
    tag: bytes
    pack: Pack
    is_repeated: bool
    is_packed: bool


def _message(descriptor: Any, found: dict[str, Any]) -> bytes:
    codes = _codes(descriptor)
    parts: list[bytes] = []
    for name, value in found.items():
        code = codes.get(name)
        if code is None or value is None:
            continue
        if not code.is_repeated:
            parts += (code.tag, code.pack(value))
            continue
        if not isinstance(value, list):
            raise _wrong(name, "a list")
        if code.is_packed:
            parts += (code.tag, sized(b"".join(map(code.pack, value))))
            continue
        for one in value:
            parts += (code.tag, code.pack(one))
    return b"".join(parts)


@functools.cache
def _codes(descriptor: Any) -> dict[str, _FieldCode]:
    return {field.json_name: _code(field) for field in descriptor.fields}


def _code(field: Any) -> _FieldCode:
    name, kind = field.json_name, field.type
    if kind == Kind.TYPE_MESSAGE:
        wire_type, pack = BYTES, _packs_message(name, field.message_type)
    elif kind == Kind.TYPE_STRING:
        wire_type, pack = BYTES, functools.partial(_text, name)
    elif kind == Kind.TYPE_BYTES:
        wire_type, pack = BYTES, functools.partial(_hex if field.name in _HEX else _base64, name)
    elif kind == Kind.TYPE_ENUM:
        wire_type, pack = VARINT, functools.partial(_enum, name, field.enum_type)
    else:
        wire_type, make = _NUMBERS[kind]
        pack = functools.partial(make, name)
    is_packed = field.is_repeated and wire_type != BYTES
    key = tag(field.number, BYTES if is_packed else wire_type)
    return _FieldCode(name, key, pack, field.is_repeated, is_packed)


def _packs_message(name: str, descriptor: Any) -> Pack:
    def pack(value: Any) -> bytes:
        if not isinstance(value, dict):
            raise _wrong(name, "an object")
        return sized(_message(descriptor, value))

    return pack


def _text(name: str, value: Any) -> bytes:
    if not isinstance(value, str):
        raise _wrong(name, "a text")
    return sized(value.encode())


def _hex(name: str, value: Any) -> bytes:
    try:
        return sized(binascii.unhexlify(value))
    except (ValueError, TypeError):
        raise _wrong(name, "hexadecimal digits") from None


def _base64(name: str, value: Any) -> bytes:
    try:
        plain = value.translate(_URL_SAFE).rstrip("=")
        return sized(base64.b64decode(plain + "=" * (-len(plain) % 4), validate=True))
    except (ValueError, AttributeError):
        raise _wrong(name, "base64") from None


def _enum(name: str, kind: Any, value: Any) -> bytes:
    if isinstance(value, str) and value in kind.values_by_name:
        value = kind.values_by_name[value].number
    return _int(name, 32, value, is_signed=True)


def _flag(name: str, value: Any) -> bytes:
    if not isinstance(value, bool):
        raise _wrong(name, "true or false")
    return b"\1" if value else b"\0"


def _double(name: str, value: Any) -> bytes:
    if isinstance(value, str):
        value = _NAMED_DOUBLES.get(value, value)
    try:
        return _DOUBLE.pack(_checked_number(value))
    except (ValueError, TypeError, OverflowError):
        raise _wrong(name, "a number") from None


def _number(name: str, bits: int, value: Any, *, is_signed: bool) -> int:
    try:
        plain = _checked_number(value)
        found = plain if isinstance(plain, int) else int(plain)
        if found != plain:
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        raise _wrong(name, "a whole number") from None
    least, end = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if is_signed else (0, 2**bits)
    if not least <= found < end:
        raise _wrong(name, f"a whole number of {bits} bits")
    return found


def _checked_number(value: Any) -> int | float:
    """Return a number that is given as one or as text."""
    if isinstance(value, str):
        if not value.isascii() or value != value.strip() or "_" in value:
            raise ValueError
        return int(value) if value.lstrip("-").isdigit() else _finite(float(value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError
    return value


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError
    return value


def _int(name: str, bits: int, value: Any, *, is_signed: bool) -> bytes:
    return varint(_number(name, bits, value, is_signed=is_signed) % _WORD)


def _zigzag(name: str, value: Any) -> bytes:
    found = _number(name, 32, value, is_signed=True)
    return varint(2 * found if found >= 0 else -2 * found - 1)


def _wrong(name: str, wanted: str) -> InvalidInput:
    return InvalidInput(f"{name}: must be {wanted}", field=name)


_URL_SAFE = str.maketrans("-_", "+/")
_NAMED_DOUBLES = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NUMBERS: dict[int, tuple[int, Callable[[str, Any], bytes]]] = {
    Kind.TYPE_BOOL: (VARINT, _flag),
    Kind.TYPE_DOUBLE: (FIXED64, _double),
    Kind.TYPE_FIXED64: (FIXED64, lambda name, value: _UINT64.pack(_number(name, 64, value, is_signed=False))),
    Kind.TYPE_SFIXED64: (FIXED64, lambda name, value: _INT64.pack(_number(name, 64, value, is_signed=True))),
    Kind.TYPE_FIXED32: (FIXED32, lambda name, value: _UINT32.pack(_number(name, 32, value, is_signed=False))),
    Kind.TYPE_INT32: (VARINT, lambda name, value: _int(name, 32, value, is_signed=True)),
    Kind.TYPE_UINT32: (VARINT, lambda name, value: _int(name, 32, value, is_signed=False)),
    Kind.TYPE_INT64: (VARINT, lambda name, value: _int(name, 64, value, is_signed=True)),
    Kind.TYPE_UINT64: (VARINT, lambda name, value: _int(name, 64, value, is_signed=False)),
    Kind.TYPE_SINT32: (VARINT, _zigzag),
}

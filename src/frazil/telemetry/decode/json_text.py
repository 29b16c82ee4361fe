"""Arrays and maps of values as JSON text, which keeps the type of each value.

Strings, integers, doubles (which have a point or an exponent), booleans, arrays and maps are what JSON has for them; an
empty value is `null`. What JSON has nothing for is an object of one key, named as OTLP's JSON names it:

    bytes                                   {"bytesValue": base64}
    NaN and infinities                      {"doubleValue": "NaN"}, "Infinity", "-Infinity"
    a map with a repeated key, or one       {"kvlistValue": [[key, value], …]}
    that looks like one of these objects
    an index into the strings of profiles   {"stringValueStrindex": number}
"""

from __future__ import annotations

import json
import math
from base64 import b64encode
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

BYTES, DOUBLE, KVLIST, STRINDEX = "bytesValue", "doubleValue", "kvlistValue", "stringValueStrindex"
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"))
_TAGS = {BYTES, DOUBLE, KVLIST, STRINDEX}


def array_text(message: bytes) -> str:
    """Return the JSON of the bytes of an `ArrayValue`."""
    return dumped(_array(ArrayValue.FromString(message)))


def kvlist_text(message: bytes) -> str:
    """Return the JSON of the bytes of a `KeyValueList`."""
    return dumped(_kvlist(KeyValueList.FromString(message)))


def dumped(value: Any) -> str:
    return _ENCODER.encode(value)


def double_of(value: float) -> Any:
    """Return what stands for a double in JSON."""
    if math.isfinite(value):
        return value
    return {DOUBLE: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}


def _any(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return None
        case "double_value":
            return double_of(value.double_value)
        case "bytes_value":
            return {BYTES: b64encode(value.bytes_value).decode()}
        case "array_value":
            return _array(value.array_value)
        case "kvlist_value":
            return _kvlist(value.kvlist_value)
        case "string_value_strindex":
            return {STRINDEX: value.string_value_strindex}
        case _:
            return getattr(value, kind)


def _array(value: ArrayValue) -> list[Any]:
    return [_any(element) for element in value.values]


def _kvlist(value: KeyValueList) -> dict[str, Any]:
    entries = [(entry.key, _any(entry.value)) for entry in value.values]
    plain = dict(entries)
    if len(plain) < len(entries) or (len(plain) == 1 and plain.keys() <= _TAGS):
        return {KVLIST: [list(entry) for entry in entries]}
    return plain

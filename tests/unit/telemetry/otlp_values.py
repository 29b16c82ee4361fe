"""Values as plain Python: those of messages, and those that text and type of a row stand for.

Both sides are written from the documentation (`docs/reference/telemetry-tables.md`), not from the decoder.
"""

from __future__ import annotations

import json
import math
from base64 import b64decode
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue

Plain = tuple[Any, ...]


def of_double(value: float) -> Plain:
    return ("double", "NaN" if math.isnan(value) else value.hex())


def of_message(value: AnyValue) -> Plain:
    kind = value.WhichOneof("value")
    match kind:
        case None:
            return ("empty",)
        case "double_value":
            return of_double(value.double_value)
        case "array_value":
            return ("array", [of_message(one) for one in value.array_value.values])
        case "kvlist_value":
            return ("kvlist", [(one.key, of_message(one.value)) for one in value.kvlist_value.values])
        case "string_value_strindex":
            return ("strindex", value.string_value_strindex)
        case _:
            return (kind.removesuffix("_value"), getattr(value, kind))


def of_attributes(attributes: Any) -> list[tuple[str, list[Plain]]]:
    """All values of each key, keys in the order in which they first occur."""
    found: dict[str, list[Plain]] = {}
    for one in attributes:
        found.setdefault(one.key, []).append(of_message(one.value))
    return list(found.items())


def of_text(text: str, kind: str | None) -> Plain:
    match kind:
        case None:
            return ("string", text)
        case "int":
            assert text == str(int(text))
            return ("int", int(text))
        case "bool":
            return ("bool", {"true": True, "false": False}[text])
        case "double":
            return of_double(float(text))
        case "bytes":
            return ("bytes", b64decode(text, validate=True))
        case "strindex":
            return ("strindex", int(text))
        case "empty":
            assert text == ""
            return ("empty",)
        case "array" | "kvlist":
            found = _of_json(_parsed(text))
            assert found[0] == kind
            return found
        case _:
            raise AssertionError(kind)


def of_maps(texts: list[tuple[str, str]], types: list[tuple[str, str]]) -> list[tuple[str, list[Plain]]]:
    """What the two maps of attributes stand for."""
    kinds = dict(types)
    assert len(kinds) == len(types)
    assert len(dict(texts)) == len(texts)
    assert kinds.keys() <= dict(texts).keys()
    assert "string" not in kinds.values()
    return [
        (key, [_of_json(one) for one in _parsed(text)])
        if kinds.get(key) == "repeated"
        else (key, [of_text(text, kinds.get(key))])
        for key, text in texts
    ]


class _Object(list[tuple[str, Any]]):
    """A JSON object, with its keys as they are."""


def _parsed(text: str) -> Any:
    def never(constant: str) -> Any:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, object_pairs_hook=_Object, parse_constant=never)


def _of_json(value: Any) -> Plain:
    if isinstance(value, _Object):
        return _of_object(value)
    match value:
        case None:
            return ("empty",)
        case bool():
            return ("bool", value)
        case int():
            return ("int", value)
        case float():
            return of_double(value)
        case str():
            return ("string", value)
        case _:
            return ("array", [_of_json(one) for one in value])


def _of_object(value: _Object) -> Plain:
    match value:
        case [("bytesValue", text)]:
            return ("bytes", b64decode(text, validate=True))
        case [("doubleValue", text)]:
            return of_double(float(text))
        case [("stringValueStrindex", number)]:
            return ("strindex", number)
        case [("kvlistValue", pairs)]:
            return ("kvlist", [(key, _of_json(one)) for key, one in pairs])
        case _:
            assert len(dict(value)) == len(value)
            return ("kvlist", [(key, _of_json(one)) for key, one in value])

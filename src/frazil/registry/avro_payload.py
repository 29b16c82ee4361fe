"""Whether bytes are one value of an Avro schema: walked by functions compiled from it, and nothing is built.

A reader of values is not used: fastavro ends the process on a payload that nests a recursive type deep enough, fills
the memory on a few bytes that announce many nulls, and takes symbols and branches with negative numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from frazil.registry.definition import DEPTH_MAX, Validator

_Skip = Callable[[bytes, int, int], int]
"""From the position of a value to that behind it; the last number is how deep it is nested."""

_VARINT_BYTES_MAX = 10


class _Misfit(Exception):
    pass


def compile_validator(schema: Any) -> Validator:
    skip = _compile(schema, {})

    def problem(payload: bytes) -> str | None:
        try:
            end = skip(payload, 0, 0)
        except _Misfit as misfit:
            return str(misfit)
        except IndexError:
            return "ends before its value does"
        except UnicodeDecodeError:
            return "has a string that is not UTF-8"
        except RecursionError:
            return "is nested too deep"
        if end > len(payload):
            return "ends before its value does"
        return None if end == len(payload) else f"has {len(payload) - end} bytes behind its value"

    return problem


def _compile(schema: Any, records: dict[str, _Skip]) -> _Skip:
    kind = schema.type
    if kind in _PRIMITIVES:
        return _PRIMITIVES[kind]
    if kind == "union":
        return _union([_compile(branch, records) for branch in schema.schemas])
    if kind == "array":
        return _blocks(_compile(schema.items, records), _takes_bytes(schema.items, set()))
    if kind == "map":
        return _blocks(_entry(_compile(schema.values, records)), True)
    if kind == "fixed":
        return lambda _, at, __: at + int(schema.size)
    if kind == "enum":
        return _enum(len(schema.symbols))
    assert kind == "record"
    return _record(schema, records)


def _record(schema: Any, records: dict[str, _Skip]) -> _Skip:
    if schema.fullname in records:
        return records[schema.fullname]
    fields: list[_Skip] = []

    def skip(data: bytes, at: int, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise _Misfit(f"is nested deeper than {DEPTH_MAX}")
        for field in fields:
            at = field(data, at, depth + 1)
        return at

    records[schema.fullname] = skip  # before its fields, which may be of its own type
    fields += [_compile(field.type, records) for field in schema.fields]
    return skip


def _union(branches: list[_Skip]) -> _Skip:
    def skip(data: bytes, at: int, depth: int) -> int:
        branch, at = _long(data, at)
        if not 0 <= branch < len(branches):
            raise _Misfit(f"chooses branch {branch} of a union of {len(branches)}")
        return branches[branch](data, at, depth)

    return skip


def _enum(symbols: int) -> _Skip:
    def skip(data: bytes, at: int, _: int) -> int:
        symbol, at = _long(data, at)
        if not 0 <= symbol < symbols:
            raise _Misfit(f"has symbol {symbol} of an enum of {symbols}")
        return at

    return skip


def _entry(value: _Skip) -> _Skip:
    return lambda data, at, depth: value(data, _skip_string(data, at, depth), depth)


def _blocks(item: _Skip, takes_bytes: bool) -> _Skip:
    """An array or map: blocks with a count, behind a negative one the size, and one of none at the end."""

    def skip(data: bytes, at: int, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise _Misfit(f"is nested deeper than {DEPTH_MAX}")
        while True:
            count, at = _long(data, at)
            if count == 0:
                return at
            size = None
            if count < 0:
                size, at = _long(data, at)
            start = at
            if takes_bytes:
                if abs(count) > len(data) - at:
                    raise _Misfit("ends before its value does")
                for _ in range(abs(count)):
                    at = item(data, at, depth + 1)
            if size is not None and at - start != size:
                raise _Misfit(f"has a block of {at - start} bytes that is said to have {size}")

    return skip


def _takes_bytes(schema: Any, within: set[str]) -> bool:
    """Whether every value of it does; of those that take none any number is read at once."""
    if schema.type == "null":
        return False
    if schema.type == "fixed":
        return int(schema.size) > 0
    if schema.type != "record":
        return True
    if schema.fullname in within:
        return False
    within = within | {schema.fullname}
    return any(_takes_bytes(field.type, within) for field in schema.fields)


def _long(data: bytes, at: int) -> tuple[int, int]:
    byte = data[at]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), at + 1
    value, shift = byte & 0x7F, 7
    while True:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
        if shift >= 7 * _VARINT_BYTES_MAX:
            raise _Misfit("has a number of more than 64 bits")
    if value >= 1 << 64:
        raise _Misfit("has a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), at + 1


def _skip_long(data: bytes, at: int, _: int) -> int:
    return _long(data, at)[1]


def _skip_int(data: bytes, at: int, _: int) -> int:
    value, at = _long(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise _Misfit("has an int of more than 32 bits")
    return at


def _skip_boolean(data: bytes, at: int, _: int) -> int:
    if data[at] > 1:
        raise _Misfit(f"has a boolean that is {data[at]}")
    return at + 1


def _skip_bytes(data: bytes, at: int, _: int) -> int:
    length, at = _long(data, at)
    if not 0 <= length <= len(data) - at:
        raise _Misfit("ends before its value does")
    return at + length


def _skip_string(data: bytes, at: int, _: int) -> int:
    length, at = _long(data, at)
    end = at + length
    if not at <= end <= len(data):
        raise _Misfit("ends before its value does")
    data[at:end].decode()
    return end


_PRIMITIVES: dict[str, _Skip] = {
    "null": lambda _, at, __: at,
    "boolean": _skip_boolean,
    "int": _skip_int,
    "long": _skip_long,
    "float": lambda _, at, __: at + 4,
    "double": lambda _, at, __: at + 8,
    "bytes": _skip_bytes,
    "string": _skip_string,
}

"""Check that bytes are one value of an Avro schema, with functions compiled from the schema; no value is built.

fastavro is not used to read values: it crashes the process on a payload that nests a recursive type deeply, fills the
memory on a few bytes that announce many nulls, and accepts symbols and branches with negative numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from frazil.registry.definition import DEPTH_MAX, Validator

Skip = Callable[[bytes, int, int], int]
"""Maps the position of a value to the position after it; the last argument is the nesting depth."""

ENDS_EARLY = "ends before its value does"
_VARINT_BYTES_MAX = 10


class PayloadMismatch(Exception):
    pass


class Walk(NamedTuple):
    """How to skip a value of a schema."""

    skip: Skip
    takes_bytes: bool
    """Whether every value takes bytes; any number of values without bytes is skipped at once."""


def compile_walk(schema: Any) -> Walk:
    compiler = _Compiler(schema)
    return Walk(compiler.skip_of(schema), compiler.takes_bytes(schema))


def value_validator(walk: Walk) -> Validator:
    """Validate payloads that are one value."""
    skip = walk.skip

    def pass_by(payload: bytes) -> None:
        end = skip(payload, 0, 0)
        if end < len(payload):
            raise PayloadMismatch(f"has {len(payload) - end} bytes behind its value")
        if end > len(payload):
            raise PayloadMismatch(ENDS_EARLY)

    return reporting_failures(pass_by)


def reporting_failures(pass_by: Callable[[bytes], None]) -> Validator:
    """Turn any decode failure into a message."""

    def problem(payload: bytes) -> str | None:
        try:
            pass_by(payload)
        except PayloadMismatch as misfit:
            return str(misfit)
        except IndexError:
            return ENDS_EARLY
        except UnicodeDecodeError:
            return "has a string that is not UTF-8"
        except RecursionError:
            return "is nested too deep"
        return None

    return problem


class _Compiler:
    """Compile each record once. Types without bytes are left out, so that each step of a walk
    consumes a byte or ends.
    """

    def __init__(self, schema: Any) -> None:
        self._skips: dict[str, Skip] = {}
        self._with_bytes = _records_with_bytes(schema)

    def takes_bytes(self, schema: Any) -> bool:
        return _takes_bytes(schema) or (schema.type == "record" and schema.fullname in self._with_bytes)

    def skip_of(self, schema: Any) -> Skip:
        kind = schema.type
        if kind in _PRIMITIVES:
            return _PRIMITIVES[kind]
        if kind == "union":
            return _union([self.skip_of(branch) for branch in schema.schemas])
        if kind == "array":
            return _blocks(self.skip_of(schema.items), self.takes_bytes(schema.items))
        if kind == "map":
            return _blocks(_entry(self.skip_of(schema.values)), True)
        if kind == "fixed":
            return lambda _, at, __: at + int(schema.size)
        if kind == "enum":
            return _enum(len(schema.symbols))
        assert kind == "record"
        return self._record(schema)

    def _record(self, schema: Any) -> Skip:
        if schema.fullname in self._skips:
            return self._skips[schema.fullname]
        fields: list[Skip] = []

        def skip(data: bytes, at: int, depth: int) -> int:
            if depth > DEPTH_MAX:
                raise PayloadMismatch(f"is nested deeper than {DEPTH_MAX}")
            for field in fields:
                at = field(data, at, depth + 1)
            return at

        self._skips[schema.fullname] = skip  # before its fields, which may have its own type
        fields += [self.skip_of(field.type) for field in schema.fields if self.takes_bytes(field.type)]
        return skip


def _records_with_bytes(schema: Any) -> set[str]:
    """Return the full names of the records whose values always take bytes, through their own or nested fields."""
    users: dict[str, list[str]] = {}
    found: list[str] = []
    seen: set[str] = set()
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if one.type in ("array", "map"):
            waiting.append(one.items if one.type == "array" else one.values)
        elif one.type == "union":
            waiting += one.schemas
        elif one.type == "record" and one.fullname not in seen:
            seen.add(one.fullname)
            for field in one.fields:
                waiting.append(field.type)
                if field.type.type == "record":
                    users.setdefault(field.type.fullname, []).append(one.fullname)
            if any(_takes_bytes(field.type) for field in one.fields):
                found.append(one.fullname)
    with_bytes: set[str] = set()
    while found:
        name = found.pop()
        if name not in with_bytes:
            with_bytes.add(name)
            found += users.get(name, ())
    return with_bytes


def _union(branches: list[Skip]) -> Skip:
    def skip(data: bytes, at: int, depth: int) -> int:
        branch, at = read_long(data, at)
        if not 0 <= branch < len(branches):
            raise PayloadMismatch(f"chooses branch {branch} of a union of {len(branches)}")
        return branches[branch](data, at, depth)

    return skip


def _enum(symbols: int) -> Skip:
    def skip(data: bytes, at: int, _: int) -> int:
        symbol, at = read_long(data, at)
        if not 0 <= symbol < symbols:
            raise PayloadMismatch(f"has symbol {symbol} of an enum of {symbols}")
        return at

    return skip


def _entry(value: Skip) -> Skip:
    return lambda data, at, depth: value(data, _skip_string(data, at, depth), depth)


def _blocks(item: Skip, takes_bytes: bool) -> Skip:
    """Skip an array or map: blocks with a count, followed by a size if the count is negative, up to an empty block."""

    def skip(data: bytes, at: int, depth: int) -> int:
        if depth > DEPTH_MAX:
            raise PayloadMismatch(f"is nested deeper than {DEPTH_MAX}")
        while True:
            count, at = read_long(data, at)
            if count == 0:
                return at
            size = None
            if count < 0:
                size, at = read_long(data, at)
            start = at
            if takes_bytes:
                if abs(count) > len(data) - at:
                    raise PayloadMismatch(ENDS_EARLY)
                for _ in range(abs(count)):
                    at = item(data, at, depth + 1)
            if size is not None and at - start != size:
                raise PayloadMismatch(f"has a block of {at - start} bytes that is said to have {size}")

    return skip


def _takes_bytes(schema: Any) -> bool:
    """Whether every value takes bytes, by its type alone; records are not decided here."""
    if schema.type == "fixed":
        return int(schema.size) > 0
    return schema.type not in ("null", "record")


def read_long(data: bytes, at: int) -> tuple[int, int]:
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
            raise PayloadMismatch("has a number of more than 64 bits")
    if value >= 1 << 64:
        raise PayloadMismatch("has a number of more than 64 bits")
    return (value >> 1) ^ -(value & 1), at + 1


def _skip_long(data: bytes, at: int, _: int) -> int:
    return read_long(data, at)[1]


def _skip_int(data: bytes, at: int, _: int) -> int:
    value, at = read_long(data, at)
    if not -(1 << 31) <= value < 1 << 31:
        raise PayloadMismatch("has an int of more than 32 bits")
    return at


def _skip_boolean(data: bytes, at: int, _: int) -> int:
    if data[at] > 1:
        raise PayloadMismatch(f"has a boolean that is {data[at]}")
    return at + 1


def skip_bytes(data: bytes, at: int, _: int) -> int:
    length, at = read_long(data, at)
    if not 0 <= length <= len(data) - at:
        raise PayloadMismatch(ENDS_EARLY)
    return at + length


def _skip_string(data: bytes, at: int, _: int) -> int:
    length, at = read_long(data, at)
    end = at + length
    if not at <= end <= len(data):
        raise PayloadMismatch(ENDS_EARLY)
    data[at:end].decode()
    return end


_PRIMITIVES: dict[str, Skip] = {
    "null": lambda _, at, __: at,
    "boolean": _skip_boolean,
    "int": _skip_int,
    "long": _skip_long,
    "float": lambda _, at, __: at + 4,
    "double": lambda _, at, __: at + 8,
    "bytes": skip_bytes,
    "string": _skip_string,
}

"""Payloads in Avro: those that another library wrote fit, and nothing that is sent hurts."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from schemas import avro, enum, field, fixed, record

EVERYTHING = record(
    field("flag", "boolean"),
    field("count", "int"),
    field("size", "long"),
    field("ratio", "float"),
    field("exact", "double"),
    field("raw", "bytes"),
    field("text", "string"),
    field("nothing", "null"),
    field("colour", enum("RED", "GREEN")),
    field("hash", fixed(4)),
    field("all", {"type": "array", "items": "long"}),
    field("named", {"type": "map", "values": ["null", "string"]}),
    field("next", ["null", "Order"]),
)
VALUE: dict[str, Any] = {
    "flag": True,
    "count": -(1 << 31),
    "size": (1 << 63) - 1,
    "ratio": 0.5,
    "exact": 0.1,
    "raw": b"\xff\0",
    "text": "tëa",
    "nothing": None,
    "colour": "GREEN",
    "hash": b"abcd",
    "all": [1, -(1 << 63), 300],
    "named": {"a": None, "b": "x"},
    "next": None,
}


def written(schema: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(schema), value)
    return buffer.getvalue()


def problem(schema: Any, payload: bytes) -> str | None:
    return avro(schema).validator()(payload)


def number(value: int) -> bytes:
    return written("long", value)


def test_what_another_library_wrote_fits() -> None:
    assert problem(EVERYTHING, written(EVERYTHING, VALUE)) is None
    assert problem(EVERYTHING, written(EVERYTHING, VALUE | {"next": VALUE})) is None


def test_every_shorter_or_longer_payload_does_not_fit() -> None:
    payload = written(EVERYTHING, VALUE)
    check = avro(EVERYTHING).validator()
    assert all(check(payload[:end]) == "ends before its value does" for end in range(len(payload)))
    assert check(payload + b"\0") == "has 1 bytes behind its value"


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ("boolean", b"\x02", "a boolean that is 2"),
        ("int", number(1 << 31), "more than 32 bits"),
        ("long", b"\xff" * 11 + b"\0", "more than 64 bits"),
        ("long", b"\xff" * 9 + b"\x02", "more than 64 bits"),
        ("string", number(2) + b"\xc3\x28", "not UTF-8"),
        ("string", number(-1) + b"a", "ends before"),
        ("bytes", number(1 << 60), "ends before"),
        (["null", "int"], number(2), "branch 2 of a union of 2"),
        (["null", "int"], number(-1) + number(0), "branch -1"),
        (enum("A"), number(1), "symbol 1 of an enum of 1"),
        (enum("A"), number(-1), "symbol -1"),
        (fixed(4), b"abc", "ends before"),
        ({"type": "array", "items": "int"}, number(1 << 60) + number(1), "ends before"),
        ({"type": "array", "items": "float"}, number(1 << 60), "ends before"),
        ({"type": "array", "items": fixed(4)}, number(-(1 << 60)) + number(1), "ends before"),
        ({"type": "array", "items": "int"}, number(1) + number(1), "ends before"),
        ({"type": "array", "items": "int"}, number(-1) + number(2) + number(1) + number(0), "said to have 2"),
        ({"type": "map", "values": "int"}, number(1) + number(1) + b"a", "ends before"),
    ],
)
def test_what_is_no_value_is_told(schema: Any, payload: bytes, reason: str) -> None:
    assert reason in str(problem(schema, payload))


def test_blocks_may_say_their_size() -> None:
    assert problem({"type": "array", "items": "int"}, number(-2) + number(2) + number(1) + number(2) + b"\0") is None


def test_many_values_without_bytes_cost_nothing() -> None:
    for kind in ("null", record(name="Empty"), record(field("n", "null"), name="Nulls")):
        assert problem({"type": "array", "items": kind}, number(1 << 62) + b"\0") is None


def test_a_value_that_is_nested_too_deep_is_told() -> None:
    chain = record(field("next", ["null", "Order"]))
    assert problem(chain, b"\x02" * 100 + b"\0") is None
    assert problem(chain, b"\x02" * 1_000_000 + b"\0") == "is nested deeper than 128"
    arrays = record(field("all", {"type": "array", "items": "Order"}))
    assert problem(arrays, b"\x02" * 1_000_000) == "is nested deeper than 128"


def file(schema: Any, *values: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.writer(buffer, fastavro.parse_schema(schema), values, **how)
    return buffer.getvalue()


ORDER = record(field("count", "long"))


def test_a_file_fits_if_the_schema_reads_that_of_the_file() -> None:
    check = avro(ORDER).validator()
    assert check(file(ORDER, {"count": 1}, {"count": 2})) is None
    assert check(file(record(field("count", "int"), field("more", "string")), {"count": 1, "more": "x"})) is None
    assert check(file(record(field("count", "string")), {"count": "x"})) == (
        "is a file of another schema: field count: long cannot read string"
    )


def test_a_file_that_is_not_whole_does_not_fit() -> None:
    check = avro(ORDER).validator()
    good = file(ORDER, {"count": 1})
    told = {check(good[:end]) for end in range(4, len(good))}
    assert None not in told
    assert check(good[:-1] + b"?") == "is a file with a block that does not end as its header says"
    assert check(file(ORDER)) == "is a file without values"
    assert check(good.replace(b"count", b"cou\0t")) is not None
    assert "with the codec b'deflate'" in str(check(file(ORDER, {"count": 1}, codec="deflate")))


def test_many_values_without_bytes_in_a_file_cost_nothing() -> None:
    empty = record(name="Empty")
    good = file(empty, {})
    assert avro(empty).validator()(good) is None
    many = good[: -1 - 1 - 16] + number(1 << 62) + number(0) + good[-16:]
    assert avro(empty).validator()(many) is None
    floats = record(field("x", "float"))
    good = file(floats, {"x": 0.5})
    assert avro(floats).validator()(good[: -4 - 1 - 1 - 16] + number(1 << 62) + good[-21:]) is not None


def test_a_value_that_begins_like_a_file_is_still_a_value() -> None:
    four = fixed(4)
    assert avro(four).validator()(b"Obj\x01") is None

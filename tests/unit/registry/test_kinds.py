"""The words of the protocol."""

from __future__ import annotations

import struct

import pytest

import frazil
from frazil.registry.definition import incompatibilities
from frazil.registry.definitions import parse_definition
from frazil.registry.kinds import CompatibilityMode, SchemaType, ValidationPolicy


def test_types_have_other_names_in_any_case() -> None:
    said = ["avro", "JSON", "json_schema", "JsonSchema", "proto", "Protobuf", "bytes", "string", "number"]
    assert [SchemaType.parse(text).value for text in said] == [
        "avro",
        "json_schema",
        "json_schema",
        "json_schema",
        "protobuf",
        "protobuf",
        "bytes",
        "string",
        "number",
    ]


@pytest.mark.parametrize("word", [SchemaType, CompatibilityMode, ValidationPolicy])
@pytest.mark.parametrize("text", ["", "xml", "nonee", 3])
def test_other_words_are_refused_by_the_name_of_their_field(word: type, text: object) -> None:
    with pytest.raises(
        frazil.InvalidInput, match=r"^(schema_type|compatibility_mode|validation_policy): must be one of"
    ):
        word.parse(text)  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", [SchemaType.BYTES, SchemaType.STRING, SchemaType.NUMBER])
def test_a_plain_type_is_always_the_same_whatever_was_sent(kind: SchemaType) -> None:
    one, other = parse_definition(kind, b""), parse_definition(kind, b"\xff anything")
    assert one.fingerprint == other.fingerprint
    assert one.tagged_json() == f'"{kind.value.capitalize()}"'.encode()


def test_a_schema_of_another_type_may_follow_only_without_a_mode() -> None:
    text, raw = parse_definition(SchemaType.STRING, b""), parse_definition(SchemaType.BYTES, b"")
    for mode in (CompatibilityMode.BACKWARD, CompatibilityMode.FORWARD, CompatibilityMode.FULL):
        assert incompatibilities(text, raw, mode) == ["the type of the schema changed from bytes to string"]
    assert incompatibilities(text, raw, CompatibilityMode.NONE) == []


def test_payloads_of_plain_types() -> None:
    raw, text, number = (
        parse_definition(SchemaType.parse(kind), b"").validator() for kind in ("bytes", "string", "number")
    )
    assert raw(b"\xff") is None
    assert text("tëa".encode()) is None
    assert text(b"ab\xff") == "is not UTF-8 at byte 2"
    assert number(struct.pack("<d", 0.1)) is None
    assert number(b"abcd") is None
    assert number(b"abc") == "a number has 4 or 8 bytes, not 3"

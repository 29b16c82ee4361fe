"""Protocol Buffers: what is a definition, and which message reads which."""

from __future__ import annotations

import pytest
from google.protobuf import timestamp_pb2
from schemas import protobuf

import frazil
from frazil.registry.definition import incompatibilities
from frazil.registry.definitions import parse_definition, stored_definition
from frazil.registry.kinds import CompatibilityMode, SchemaType
from frazil.registry.protobuf import schema as compiling


def reads(reader: str, writer: str, syntax: str = "proto3") -> list[str]:
    found = incompatibilities(
        protobuf(reader, syntax=syntax), protobuf(writer, syntax=syntax), CompatibilityMode.BACKWARD
    )
    return [problem.removeprefix("backward: ") for problem in found]


def test_fields_are_found_by_number_and_may_come_and_go() -> None:
    old = "message M { string a = 1; int32 b = 2; }"
    new = "message M { string renamed = 1; int64 c = 3; }"
    assert reads(new, old) == []
    assert reads(old, new) == []


def test_types_match_in_groups_that_are_the_same_on_the_wire() -> None:
    kinds = {
        1: ("int32", "int64"),
        2: ("uint32", "bool"),
        3: ("sint32", "sint64"),
        4: ("fixed32", "sfixed32"),
        5: ("fixed64", "sfixed64"),
        6: ("int32", "E"),
    }
    sides = [" ".join(f"{kind[side]} f{number} = {number};" for number, kind in kinds.items()) for side in (0, 1)]
    one, other = (f"message M {{ {side} }} enum E {{ ZERO = 0; }}" for side in sides)
    assert reads(one, other) == []
    assert reads(other, one) == []


def test_other_types_do_not_match() -> None:
    one = "message M { int32 a = 1; string b = 2; double c = 3; sint32 d = 4; N e = 5; } message N {} message O {}"
    other = "message M { string a = 1; bytes b = 2; float c = 3; int32 d = 4; O e = 5; } message N {} message O {}"
    assert reads(one, other) == [
        "field a = 1: int32 cannot read string",
        "field b = 2: string cannot read bytes",
        "field c = 3: double cannot read float",
        "field d = 4: sint32 cannot read int32",
        "field e = 5: N cannot read O",
    ]
    assert "field b = 2: bytes cannot read string" not in reads(other, one)


def test_a_list_reads_a_single_text_or_message_and_nothing_else_changes_its_label() -> None:
    single = "message M { string a = 1; int32 b = 2; M c = 3; }"
    many = "message M { repeated string a = 1; repeated int32 b = 2; repeated M c = 3; }"
    assert reads(many, single) == ["field b = 2: repeated int32 cannot read int32"]
    assert reads(single, many) == [
        "field a = 1: string cannot read repeated string",
        "field b = 2: int32 cannot read repeated int32",
        "field c = 3: M cannot read repeated M",
    ]


def test_maps_match_by_their_keys_and_values() -> None:
    old = "message M { map<string, int32> a = 1; }"
    assert reads("message M { map<string, int64> renamed = 1; }", old) == []
    assert reads("message M { map<string, string> a = 1; }", old) == ["field a = 1: string cannot read int32"]
    assert reads("message M { repeated M a = 1; }", old) == ["field a = 1: repeated M cannot read map<string, int32>"]


def test_a_required_field_must_have_been_required() -> None:
    optional, required = "message M { optional int32 a = 1; }", "message M { required int32 a = 1; }"
    problem = "field a = 1: is required, and may be missing from what was written"
    assert reads(required, optional, "proto2") == [problem]
    assert reads(required, "message M {}", "proto2") == [problem]
    assert reads(optional, required, "proto2") == []
    assert reads(required, "message M { required int32 b = 1; }", "proto2") == []


def test_fields_do_not_move_together_into_a_oneof() -> None:
    apart, together = "message M { int32 a = 1; int32 b = 2; }", "message M { oneof o { int32 a = 1; int32 b = 2; } }"
    assert reads(together, apart) == ["oneof o reads only one of the fields a, b"]
    assert reads(apart, together) == []
    assert reads("message M { oneof o { int32 a = 1; } int32 b = 2; }", apart) == []
    assert reads("message M { oneof p { int32 a = 1; int32 b = 2; int32 c = 3; } }", together) == []


def test_problems_of_nested_and_recursive_messages_are_told_with_their_path() -> None:
    def nested(kind: str) -> str:
        return f"message M {{ N n = 1; M next = 2; }} message N {{ M back = 1; {kind} value = 2; }}"

    assert reads(nested("int64"), nested("int32")) == []
    assert reads(nested("string"), nested("int32")) == ["field n.value = 2: string cannot read int32"]


def test_the_first_message_is_the_one_of_the_payloads() -> None:
    assert reads("message A {} message B {}", "message B {} message A {}") == [
        "the first message is A, and cannot read B"
    ]
    assert reads("message A {}", "message A {} message Unused { int32 a = 1; }") == []


def test_forward_is_the_other_way_round() -> None:
    one, many = protobuf("message M { string a = 1; }"), protobuf("message M { repeated string a = 1; }")
    assert incompatibilities(many, one, CompatibilityMode.BACKWARD) == []
    assert len(incompatibilities(many, one, CompatibilityMode.FORWARD)) == 1
    assert incompatibilities(many, one, CompatibilityMode.FULL) == incompatibilities(
        many, one, CompatibilityMode.FORWARD
    )


def test_comments_and_spaces_do_not_make_another_schema() -> None:
    first = protobuf("message M { string a = 1; }")
    assert protobuf("// words\nmessage M {\n  string a = 1; // more\n}").fingerprint == first.fingerprint
    assert protobuf("message M { string b = 1; }").fingerprint != first.fingerprint


def test_it_comes_back_from_what_is_stored_without_a_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    made = protobuf('import "google/protobuf/timestamp.proto";', "message M { google.protobuf.Timestamp at = 1; }")
    monkeypatch.setattr("frazil.registry.protobuf.schema._compile", None)
    again = stored_definition(SchemaType.PROTOBUF, made.text, made.extra())
    assert again.fingerprint == made.fingerprint
    assert again.tagged() == {
        "Protobuf": {"raw_proto": made.text, "message_name": "M", "fingerprint": made.fingerprint}
    }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"message", "schema.proto:1:"),
        (b'syntax = "proto3"; message M { strin a = 1; }', '"strin" is not defined'),
        (b'syntax = "proto3"; message M { string a = 1; string b = 1; }', "[Ff]ield number 1"),
        (b'syntax = "proto3"; import "other.proto"; message M {}', "other.proto"),
        (b'syntax = "proto3"; import "../../etc/hostname"; message M {}', "hostname"),
        (b'syntax = "proto3";', "has no message"),
        (b"\xff", "is not UTF-8"),
    ],
)
def test_what_is_no_definition_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(frazil.InvalidSchema, match=reason) as refused:
        parse_definition(SchemaType.PROTOBUF, content)
    assert "/tmp" not in refused.value.message


def test_a_payload_fits_or_is_told_why_not() -> None:
    stamp = timestamp_pb2.Timestamp(seconds=5, nanos=7).SerializeToString()
    fits = protobuf("message M { int64 seconds = 1; int32 nanos = 2; }").validator()
    assert fits(stamp) is None
    assert fits(b"") is None
    assert "Error parsing" in str(fits(b"\xff\xff"))
    assert fits(stamp + b"\x18\x01") == "has fields that its version does not have"
    nested = protobuf("message M { N n = 1; } message N { int64 seconds = 1; }").validator()
    assert nested(b"\x0a" + bytes([len(stamp)]) + stamp) == "has fields that its version does not have"
    assert nested(b"\x0a\x02" + stamp[:2]) is None


def test_a_payload_without_its_required_fields_does_not_fit() -> None:
    required = protobuf("message M { required int32 a = 1; }", syntax="proto2").validator()
    assert required(b"") == "lacks required fields: a"
    assert required(b"\x08\x01") is None


def test_a_payload_that_is_nested_too_deep_does_not_fit() -> None:
    payload = b""
    for _ in range(3_000):
        size, length = len(payload), b""
        while size > 0x7F:
            length += bytes([size & 0x7F | 0x80])
            size >>= 7
        payload = b"\x0a" + length + bytes([size]) + payload
    assert "Error parsing" in str(protobuf("message M { M next = 1; }").validator()(payload))


def test_few_schemas_are_compiled_at_once_and_few_callers_wait() -> None:
    """Each takes a process, and its caller a thread of the door."""
    places = compiling.COMPILING_MAX + compiling.WAITING_MAX
    for _ in range(places):
        compiling._places.acquire()
    try:
        with pytest.raises(frazil.TryLater, match=f"{places} schemas are compiled or wait for it"):
            protobuf("message Waiting { string a = 1; }")
    finally:
        compiling._places.release(places)
    assert protobuf("message Waiting { string a = 1; }").validator()(b"") is None

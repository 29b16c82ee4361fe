"""JSON Schema: what is one, and the protocol's rules of what may follow what."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from schemas import json_schema

import frazil
from frazil.registry.definition import incompatibilities
from frazil.registry.definitions import parse_definition
from frazil.registry.json.schema import JsonSchema
from frazil.registry.kinds import CompatibilityMode, SchemaType

NONE, BACKWARD, FORWARD, FULL = CompatibilityMode


def made(required: tuple[str, ...] = (), **types: str) -> dict[str, Any]:
    properties = {name: {"type": kind} for name, kind in types.items()}
    return {"type": "object", "properties": properties, "required": list(required)}


def follows(old: Any, new: Any) -> dict[CompatibilityMode, list[str]]:
    return {mode: incompatibilities(json_schema(new), json_schema(old), mode) for mode in CompatibilityMode}


def test_a_required_field_that_was_removed_is_not_backward() -> None:
    assert follows(made(("a", "b"), a="string", b="integer"), made(("a",), a="string")) == {
        NONE: [],
        BACKWARD: ["backward: removed required field /b"],
        FORWARD: [],
        FULL: ["backward: removed required field /b"],
    }


def test_an_optional_field_that_was_made_required_is_not_backward() -> None:
    assert follows(made((), a="string"), made(("a",), a="string")) == {
        NONE: [],
        BACKWARD: ["backward: made optional field /a required"],
        FORWARD: [],
        FULL: ["backward: made optional field /a required"],
    }


def test_a_new_required_field_is_backward_but_not_forward() -> None:
    assert follows(made((), a="string"), made(("b",), a="string", b="string")) == {
        NONE: [],
        BACKWARD: [],
        FORWARD: ["forward: added new required field /b"],
        FULL: ["forward: added new required field /b"],
    }


def test_a_changed_type_is_neither() -> None:
    problem = "changed type of field /a from string to integer"
    assert follows(made((), a="string"), made((), a="integer")) == {
        NONE: [],
        BACKWARD: [f"backward: {problem}"],
        FORWARD: [f"forward: {problem}"],
        FULL: [f"backward: {problem}", f"forward: {problem}"],
    }
    assert follows({"type": "string"}, {"type": "number"})[BACKWARD] == [
        "backward: changed type of the whole from string to number"
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (made(("a",), a="string"), made(("a",), a="string", b="string")),
        (made(("a",), a="string", b="string"), made(("a",), a="string")),
        ({"type": ["string", "null"]}, {"type": ["null", "string"]}),
        ({"required": ["a"]}, {"required": ["a"], "description": "only words"}),
        (True, {}),
    ],
)
def test_other_changes_are_both(old: Any, new: Any) -> None:
    assert not any(follows(old, new).values())


def test_the_rules_hold_in_nested_objects_and_in_the_items_of_arrays() -> None:
    def nested(inner: Any) -> dict[str, Any]:
        return {"properties": {"at": inner, "all": {"type": "array", "items": inner}}}

    assert follows(nested(made(("a",), a="string")), nested(made((), b="string")))[BACKWARD] == [
        "backward: removed required field /at/a",
        "backward: removed required field /all/[]/a",
    ]


def test_only_the_content_makes_another_schema() -> None:
    first = parse_definition(SchemaType.JSON_SCHEMA, b'{"type": "object", "title": "x"}')
    again = parse_definition(SchemaType.JSON_SCHEMA, b'{\n  "title":"x",\n  "type":"object"\n}\n')
    other = parse_definition(SchemaType.JSON_SCHEMA, b'{"type": "object", "title": "y"}')
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert first.tagged() == {
        "JsonSchema": {"raw_schema": '{"type": "object", "title": "x"}', "fingerprint": first.fingerprint}
    }


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "is empty"),
        (b"{", "is not JSON"),
        (b'{"minimum": NaN}', "NaN is not JSON"),
        (b'{"type": "string", "type": "number"}', "'type' is there twice"),
        (b"\xff", "is not UTF-8 at byte 0"),
        (b"3", "an object or a boolean, not int"),
        (b'{"type": "bogus"}', '/type: "bogus"'),
        (b'{"properties": {"a": {"required": "b"}}}', "/properties/a/required"),
        (b'{"pattern": "("}', "/pattern"),
        (b'{"$ref": "#/nowhere"}', "nowhere"),
        (b'{"$ref": "http://127.0.0.1:9/schema"}', "[Rr]etriev"),
        (b'{"$schema": "http://example.com/mine"}', "Unknown meta-schema"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"not": ' * 200 + b"{}" + b"}" * 200, "nested deeper"),
        (b'"' + b"x" * (256 * 1024) + b'"', "has 262146 bytes, and at most 262144"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(content: bytes, reason: str) -> None:
    with pytest.raises(frazil.InvalidSchema, match=reason) as refused:
        parse_definition(SchemaType.JSON_SCHEMA, content)
    assert refused.value.message.startswith("schema_definition: ")


def test_nothing_is_read_from_elsewhere(tmp_path: Path) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"type": "string"}')
    with pytest.raises(frazil.InvalidSchema, match="Retrieval is disabled"):
        json_schema({"$ref": other.as_uri()})


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        (b'{"a": "x"}', None),
        (b'{"a": "x", "more": [1]}', None),
        (b'{"a": 1}', '/a: 1 is not of type "string"'),
        (b"{}", 'the payload: "a" is a required property'),
        (b"{", "is not JSON"),
        (b'{"a": NaN}', "is not JSON: NaN is not JSON"),
        (b"\xff\xfe\xfa", "is not JSON"),
        (b"[" * 100_000 + b"]" * 100_000, "is nested too deep"),
    ],
)
def test_a_payload_fits_or_is_told_why_not(payload: bytes, problem: str | None) -> None:
    found = json_schema(made(("a",), a="string")).validator()(payload)
    assert found is None if problem is None else problem in str(found)


def test_half_of_a_pair_of_surrogates_is_told_and_not_raised() -> None:
    assert "surrogates" in str(json_schema({"pattern": "^x"}).validator()(b'"\\ud800"'))


def test_numbers_of_any_size_are_numbers() -> None:
    whole = json_schema({"type": "integer"}).validator()
    assert whole(str(1 << 300).encode()) is None
    assert whole(b"1" * 10_000) is not None


def test_a_recursive_schema_ends_on_a_deep_payload() -> None:
    tree = json_schema({"properties": {"next": {"$ref": "#"}}, "additionalProperties": False}).validator()
    assert tree(b'{"next":' * 50 + b"{}" + b"}" * 50) is None
    assert tree(b'{"next":' * 400 + b'{"x":1}' + b"}" * 400) is not None
    assert tree(b'{"next":' * 100_000 + b"{}" + b"}" * 100_000) == "is nested too deep"


def _thing(kind: str, *required: str) -> dict[str, object]:
    return {"type": "object", "properties": {"a": {"type": kind}}, "required": list(required)}


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (_thing("string"), {"$ref": "#/$defs/X", "$defs": {"X": _thing("integer")}}),
        ({"$ref": "#/$defs/X", "$defs": {"X": _thing("string")}}, _thing("integer")),
        ({"allOf": [_thing("string")]}, {"allOf": [{}, {"$ref": "#/$defs/Y"}], "$defs": {"Y": _thing("integer")}}),
        (_thing("string"), {"$ref": "#there", "$defs": {"X": {"$anchor": "there"} | _thing("integer")}}),
        ({"properties": {"a": {"type": ["string", "integer"]}}, "allOf": [_thing("string")]}, _thing("integer")),
    ],
)  # fmt: skip
def test_fields_are_compared_behind_references_and_in_all_of(old: object, new: object) -> None:
    reasons = JsonSchema(json.dumps(new)).backward(JsonSchema(json.dumps(old)))
    assert reasons == ["changed type of field /a from string to integer"]
    assert JsonSchema(json.dumps(old)).backward(JsonSchema(json.dumps(old))) == []

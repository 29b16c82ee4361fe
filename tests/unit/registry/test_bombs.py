"""Small schemas that ask for work without end are taken or refused at once."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from frazil.core.errors import InvalidSchema
from frazil.registry.avro.schema import AvroSchema
from frazil.registry.json.schema import JsonSchema

LEVELS = 35
SECONDS_MAX = 5.0


def avro_bomb(bottom: Any) -> str:
    schema: dict[str, Any] = {"type": "record", "name": "R0", "fields": [{"name": "x", "type": bottom}]}
    for level in range(1, LEVELS + 1):
        fields = [{"name": "a", "type": schema}, {"name": "b", "type": f"R{level - 1}"}]
        schema = {"type": "record", "name": f"R{level}", "fields": fields}
    return json.dumps(schema)


def test_avro_records_without_bytes_cost_nothing() -> None:
    started = time.monotonic()
    problem = AvroSchema(avro_bomb("null")).validator()
    assert problem(b"") is None
    assert problem(b"\0") == "has 1 bytes behind its value"
    assert time.monotonic() - started < SECONDS_MAX


def test_avro_records_with_bytes_end_where_the_payload_does() -> None:
    started = time.monotonic()
    problem = AvroSchema(avro_bomb("int")).validator()
    assert problem(b"\0" * 1_000) == "ends before its value does"
    assert time.monotonic() - started < SECONDS_MAX


def test_a_record_takes_bytes_if_one_that_it_meets_later_does() -> None:
    """Whatever the order in which they are looked at."""
    inner = {"type": "record", "name": "B", "fields": [{"name": "n", "type": "null"}, {"name": "i", "type": "int"}]}
    schema = {
        "type": "record", "name": "A",
        "fields": [{"name": "b", "type": inner}, {"name": "many", "type": {"type": "array", "items": "B"}}],
    }  # fmt: skip
    problem = AvroSchema(json.dumps(schema)).validator()
    assert problem(b"\x02\x04\x02\x04\0") is None
    assert problem(b"\x02\x04\x02\0") == "ends before its value does"


def test_an_avro_default_is_compared_with_each_record_once() -> None:
    def record(name: str, other: Any) -> dict[str, Any]:
        fields = [{"name": "x", "type": ["null", name, other]}, {"name": "end", "type": "int"}]
        return {"type": "record", "name": name, "fields": fields}

    value: Any = {"x": None, "end": "not an int"}
    for _ in range(LEVELS):
        value = {"x": value, "end": 1}
    chosen = {"name": "chosen", "type": [record("A", record("B", "A")), "B"], "default": value}
    started = time.monotonic()
    with pytest.raises(InvalidSchema, match="is not of its type"):
        AvroSchema(json.dumps({"type": "record", "name": "Root", "fields": [chosen]}))
    assert time.monotonic() - started < SECONDS_MAX


@pytest.mark.parametrize("nested", [False, True])
def test_json_references_that_multiply_are_refused(nested: bool) -> None:
    parts: dict[str, Any] = {"p0": {"type": "integer"}}
    for level in range(1, LEVELS):
        twice: Any = {"allOf": [{"$ref": f"#/$defs/p{level - 1}"}] * 2}
        parts[f"p{level}"] = {"properties": {"x": twice}} if nested else twice
    with pytest.raises(InvalidSchema, match="references multiply"):
        JsonSchema(json.dumps({"$ref": f"#/$defs/p{LEVELS - 1}", "$defs": parts}))


def test_a_json_schema_that_refers_to_itself_is_taken() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": "integer"}}}
    problem = JsonSchema(json.dumps(tree)).validator()
    assert problem(b'{"left": {"right": {"value": 1}}}') is None
    assert problem(b'{"left": {"right": {"value": "x"}}}') is not None
    changed = tree["properties"] | {"value": {"type": "string"}}
    reasons = JsonSchema(json.dumps({"properties": changed})).backward(JsonSchema(json.dumps(tree)))
    assert reasons == ["changed type of field /value from integer to string"]


def json_problem(schema: Any, payload: Any) -> str | None:
    """Return the problem, which must be found soon: nothing else runs in the process meanwhile."""
    problem = JsonSchema(json.dumps(schema)).validator()
    started = time.monotonic()
    found = problem(json.dumps(payload).encode())
    assert time.monotonic() - started < SECONDS_MAX
    return found


def test_the_first_of_many_wrong_values_is_enough() -> None:
    countries = {"items": {"enum": [f"country {number}" for number in range(250)]}}
    assert str(json_problem(countries, ["x"] * 60_000)).startswith('/0: "x" is not one of')


def test_why_a_payload_does_not_fit_a_recursive_schema_is_not_sought_for_ever() -> None:
    both = [{"properties": {"x": {"$ref": "#"}}, "required": ["x"]}, {"patternProperties": {"x": {"$ref": "#"}}}]
    schema = {"anyOf": [{**one, "minProperties": 1, "required": ["x"]} for one in both]}
    nested: Any = {"y": 1}
    assert "is not valid under any" in str(json_problem(schema, {"x": nested}))
    for _ in range(60):
        nested = {"x": nested}
    assert json_problem(schema, nested) == "does not fit the schema, which is too recursive to say why"


def test_a_recursion_that_begins_once_for_each_value_is_explained_at_any_depth() -> None:
    tree = {"properties": {"left": {"$ref": "#"}, "right": {"$ref": "#"}, "value": {"type": "integer"}}}
    nested: Any = {"value": "x"}
    for _ in range(100):
        nested = {"left": nested}
    assert str(json_problem(tree, nested)).startswith("/left/left/left")


@pytest.mark.parametrize(
    "items",
    [
        {"allOf": [{"minimum": 0} for _ in range(10_000)]},
        {"enum": [[number] for number in range(20_000)]},
        {"anyOf": [{"patternProperties": {f"a{{{number}}}": {"minimum": 0} for number in range(900)}}]},
    ],
)
def test_a_payload_that_takes_too_many_steps_does_not_fit(items: Any) -> None:
    value: Any = [19_999] if "enum" in items else {"a": 1} if "anyOf" in items else 1
    assert json_problem({"items": items}, [value] * 10) is None
    assert "steps to check, more than 20000000" in str(json_problem({"items": items}, [value] * 20_000))


def test_patterns_that_all_apply_to_one_value_add_up() -> None:
    parts: dict[str, Any] = {"p0": {"minimum": 0}}
    for level in range(1, 12):
        below = {"$ref": f"#/$defs/p{level - 1}"}
        parts[f"p{level}"] = {"patternProperties": dict.fromkeys(("x", "^x", "x$", "[x]"), below)}
    with pytest.raises(InvalidSchema, match="references multiply"):
        JsonSchema(json.dumps({"$ref": "#/$defs/p11", "$defs": parts}))


def test_patterns_that_take_long_to_compile_are_refused() -> None:
    """Before they are compiled: whoever may ask whether a schema is compatible would stop the process for minutes."""
    started = time.monotonic()
    with pytest.raises(InvalidSchema, match="has 9000 patterns, and may have 1000"):
        JsonSchema(json.dumps({"allOf": [{"pattern": f"a{{{number}}}"} for number in range(10_000, 19_000)]}))
    with pytest.raises(InvalidSchema, match="regex"):
        JsonSchema(json.dumps({"pattern": "(a{900}){900}"}))
    JsonSchema(json.dumps({"allOf": [{"pattern": f"a{{{2_000 + number}}}"} for number in range(1_000)]}))
    assert time.monotonic() - started < SECONDS_MAX

"""Avro: what is a schema, which are the same, and which reads which, by the examples of the specification."""

from __future__ import annotations

import json
from typing import Any

import pytest
from schemas import avro, enum, field, fixed, record

import frazil
from frazil.registry.avro.schema import AvroSchema
from frazil.registry.definition import incompatibilities
from frazil.registry.kinds import CompatibilityMode

BACKWARD, FORWARD, FULL = CompatibilityMode.BACKWARD, CompatibilityMode.FORWARD, CompatibilityMode.FULL
PRIMITIVES = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
PROMOTIONS = {
    ("int", "long"),
    ("int", "float"),
    ("int", "double"),
    ("long", "float"),
    ("long", "double"),
    ("float", "double"),
    ("string", "bytes"),
    ("bytes", "string"),
}
"""From what was written to what reads it."""


def reads(reader: Any, writer: Any) -> list[str]:
    """Why the reader's schema can't follow the writer's if it is to read its data."""
    return incompatibilities(avro(reader), avro(writer), BACKWARD)


@pytest.mark.parametrize("writer", PRIMITIVES)
@pytest.mark.parametrize("reader", PRIMITIVES)
def test_a_primitive_reads_itself_and_what_is_promoted_to_it(reader: str, writer: str) -> None:
    problems = reads(record(field("a", reader)), record(field("a", writer)))
    if reader == writer or (writer, reader) in PROMOTIONS:
        assert problems == []
    else:
        assert problems == [f"backward: field a: {reader} cannot read {writer}"]


def test_a_field_that_was_not_written_needs_a_default() -> None:
    old = record(field("a", "int"))
    assert reads(record(field("a", "int"), field("b", "int")), old) == [
        "backward: field b: is not in what was written, and has no default"
    ]
    assert reads(record(field("a", "int"), field("b", "int", default=0)), old) == []


def test_a_field_that_is_not_read_is_ignored() -> None:
    assert reads(record(field("a", "int")), record(field("a", "int"), field("b", "int"))) == []


def test_fields_are_found_by_name_in_any_order() -> None:
    assert reads(record(field("a", "int"), field("b", "string")), record(field("b", "string"), field("a", "int"))) == []


def test_a_field_is_found_by_an_alias_of_the_reader() -> None:
    writer = record(field("a", "int"))
    assert reads(record(field("b", "int", aliases=["x", "a"])), writer) == []
    assert reads(record(field("b", "string", aliases=["a"])), writer) == ["backward: field b: string cannot read int"]
    assert reads(writer, record(field("b", "int", aliases=["a"]))) != []


def test_named_types_match_without_their_namespaces_or_by_an_alias_in_full() -> None:
    old = record(field("a", "int"), name="shop.Order")
    assert reads(record(field("a", "int"), name="store.Order"), old) == []
    assert reads(record(field("a", "int"), name="shop.Sale", aliases=["Order"]), old) == []
    assert reads(record(field("a", "int"), name="store.Sale", aliases=["shop.Order"]), old) == []
    assert reads(record(field("a", "int"), name="store.Sale", aliases=["Order"]), old) == [
        "backward: record store.Sale cannot read record shop.Order: another name, and no alias"
    ]


def test_arrays_and_maps_match_by_what_they_hold() -> None:
    def both(kind: str) -> dict[str, Any]:
        return record(field("list", {"type": "array", "items": kind}), field("map", {"type": "map", "values": kind}))

    assert reads(both("long"), both("int")) == []
    assert reads(both("int"), both("long")) == [
        "backward: field list[]: int cannot read long",
        "backward: field map{}: int cannot read long",
    ]


def test_an_enum_knows_all_symbols_or_has_a_default() -> None:
    def holder(kind: Any) -> dict[str, Any]:
        return record(field("c", kind))

    old = holder(enum("RED", "GREEN"))
    assert reads(holder(enum("GREEN", "BLUE", "RED")), old) == []
    assert reads(holder(enum("GREEN")), old) == ["backward: field c: enum Colour does not know RED, and has no default"]
    assert reads(holder(enum("GREEN", default="GREEN")), old) == []


def test_a_fixed_has_the_same_size_and_name() -> None:
    old = record(field("h", fixed(16)))
    assert reads(record(field("h", fixed(16))), old) == []
    assert reads(record(field("h", fixed(32))), old) == [
        "backward: field h: fixed Hash has 32 bytes and cannot read 16"
    ]
    assert reads(record(field("h", fixed(16, "Sum"))), old) != []


def test_a_union_that_was_written_is_read_in_every_branch() -> None:
    old = record(field("a", ["null", "int"]))
    assert reads(record(field("a", ["null", "long"])), old) == []
    assert reads(record(field("a", ["string", "int"])), old) == ["backward: field a: no branch of the union reads null"]
    assert reads(record(field("a", "int")), old) == ["backward: field a: int cannot read null"]


def test_a_union_reads_what_one_of_its_branches_reads() -> None:
    assert reads(record(field("a", ["null", "double"])), record(field("a", "int"))) == []
    assert reads(record(field("a", ["null", "int"])), record(field("a", "double"))) == [
        "backward: field a: no branch of the union reads double"
    ]


def test_a_union_of_records_reads_by_the_branch_of_the_same_name_and_says_what_is_wrong_in_it() -> None:
    def either(kind: str) -> dict[str, Any]:
        return record(field("a", [record(field("x", kind), name="A"), record(field("x", "int"), name="B")]))

    assert reads(either("long"), either("int")) == []
    assert reads(either("string"), either("int")) == ["backward: field a.x: string cannot read int"]
    full_name = [record(field("x", "string"), name="p.A"), record(field("x", "int"), name="q.A")]
    assert reads(record(field("a", full_name)), record(field("a", record(field("x", "int"), name="q.A")))) == []


def test_recursive_records_are_compared_to_their_end() -> None:
    def tree(kind: str, **more: Any) -> dict[str, Any]:
        return record(
            field("value", kind), field("next", ["null", "Order"]), field("all", {"type": "array", "items": "Order"})
        )

    assert reads(tree("long"), tree("int")) == []
    assert reads(tree("int"), tree("long")) == ["backward: field value: int cannot read long"]


def test_mutually_recursive_records_are_compared_to_their_end() -> None:
    def pair(kind: str) -> dict[str, Any]:
        inner = record(field("back", ["null", "A"]), field("value", kind), name="B")
        return record(field("inner", ["null", inner]), name="A")

    assert reads(pair("double"), pair("float")) == []
    assert reads(pair("float"), pair("double")) == ["backward: field inner.value: float cannot read double"]


def test_each_problem_is_told() -> None:
    new, old = record(field("a", "int"), field("b", "int")), record(field("a", "string"))
    assert len(reads(new, old)) == 2


def test_forward_is_the_other_way_round_and_full_is_both() -> None:
    narrow, wide = avro(record(field("a", "int"))), avro(record(field("a", "long")))
    assert incompatibilities(wide, narrow, BACKWARD) == []
    assert incompatibilities(wide, narrow, FORWARD) == ["forward: field a: int cannot read long"]
    assert incompatibilities(narrow, wide, FORWARD) == []
    assert incompatibilities(wide, narrow, FULL) == ["forward: field a: int cannot read long"]
    assert incompatibilities(wide, narrow, CompatibilityMode.NONE) == []


def test_what_does_not_matter_does_not_make_another_schema() -> None:
    plain = avro(record(field("a", "int"), name="shop.Order"))
    for same in (
        record(field("a", {"type": "int"}), name="Order", namespace="shop"),
        record(field("a", "int", doc="how many"), name="shop.Order", doc="An order."),
        {"fields": [{"type": "int", "name": "a"}], "name": "shop.Order", "type": "record"},
    ):
        assert avro(same).fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    "other",
    [
        record(field("a", "int", default=0)),
        record(field("a", "int", aliases=["b"])),
        record(field("a", "int"), aliases=["Sale"]),
        record(field("a", {"type": "int", "logicalType": "date"})),
        record(field("b", "int")),
    ],
)
def test_what_matters_to_reading_makes_another_schema(other: Any) -> None:
    assert avro(other).fingerprint != avro(record(field("a", "int"))).fingerprint


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ("nope", "nope"),
        (record(field("x", "Missing")), "Missing"),
        ({"type": "record", "fields": []}, "[Nn]ame"),
        (record(field("x", "int"), field("x", "int")), "x already in use"),
        (fixed(-1), "size"),
        (enum("A", "A"), "Duplicate symbol"),
        (enum("A", default="B"), "default"),
        (["int", "int"], "int type already in Union"),
        ([["int"]], "[Uu]nion"),
        (record(name="1A"), "1A"),
        ({"type": "array"}, "Items"),
        ({"type": "map", "values": 3}, "3"),
        (3, "3"),
        ({"type": "error", "name": "E", "fields": []}, "error is not a type of data"),
        (record(field("x", "int", default="s")), 'the default "s" of field x of Order'),
        (record(field("x", "int", default=1 << 31)), "default"),
        (record(field("x", "int", default=True)), "default"),
        (record(field("x", ["null", "string"], default=5)), "default"),
        (record(field("x", fixed(2), default="abc")), "default"),
        (record(field("x", {"type": "array", "items": "int"}, default=["s"])), "default"),
        (record(field("x", "int", aliases=5)), "aliases"),
        (record(field("x", "int"), aliases="y"), "aliases"),
    ],
)
def test_what_is_no_schema_is_refused_with_the_reason(schema: Any, reason: str) -> None:
    with pytest.raises(frazil.InvalidSchema, match=reason) as refused:
        avro(schema)
    assert refused.value.field == "schema_definition"


@pytest.mark.parametrize(
    "schema",
    [
        record(field("x", ["null", "string"], default=None)),
        record(field("x", ["null", "string"], default="s")),
        record(field("x", "bytes", default="\xff")),
        record(field("x", "double", default=1)),
        record(field("x", record(field("y", "int", default=3), name="Inner"), default={})),
        record(field("x", {"type": "string", "logicalType": "nobody-knows-it"})),
        record(field("x", {"type": "bytes", "logicalType": "decimal", "precision": -1})),
        {"type": "map", "values": enum("A", default="A")},
    ],
)
def test_what_is_a_schema_is_taken(schema: Any) -> None:
    assert avro(schema).tagged() == {"Avro": {"raw_schema": avro(schema).text, "fingerprint": avro(schema).fingerprint}}


def test_types_that_refer_to_one_another_too_deep_are_not_compared_but_refused() -> None:
    def chain(name: str) -> dict[str, Any]:
        links = [record(field("x", f"R{number}"), name=f"R{number + 1}") for number in range(1_500)]
        return record(field(name, ["null", record(name="R0"), *links], default=None), field("last", "R1500"))

    assert reads(chain("a"), chain("a")) == []
    assert reads(chain("a"), chain("b")) == ["backward: the types refer to one another too deep to be compared"]


def test_a_definition_that_is_nested_too_deep_is_refused() -> None:
    kind: Any = "int"
    for _ in range(500):
        kind = {"type": "array", "items": kind}
    with pytest.raises(frazil.InvalidSchema, match="nested deeper than"):
        avro(kind)


@pytest.mark.parametrize("kind", ["bytes", {"type": "fixed", "name": "F", "size": 8}])
def test_decimals_of_another_scale_cannot_be_read(kind: object) -> None:
    def decimal(scale: int) -> AvroSchema:
        base = kind if isinstance(kind, dict) else {"type": kind}
        field = {"name": "a", "type": base | {"logicalType": "decimal", "precision": 10, "scale": scale}}
        return AvroSchema(json.dumps({"type": "record", "name": "R", "fields": [field]}))

    assert decimal(4).backward(decimal(2)) == ["field a: decimal(10, 4) cannot read decimal(10, 2)"]
    assert decimal(2).backward(decimal(2)) == []

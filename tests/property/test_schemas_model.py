"""Any schema: what reads what agrees with Apache's own check and with a real reader, and so do payloads."""

from __future__ import annotations

import io
import json
from typing import Any

import avro.schema
import fastavro
from avro.compatibility import ReaderWriterCompatibilityChecker, SchemaCompatibilityType
from avro_schemas import SHAPES, changed, schema, values
from hypothesis import given, settings
from hypothesis import strategies as st

from frazil.registry.avro.schema import AvroSchema
from frazil.registry.definition import Definition, incompatibilities
from frazil.registry.json.schema import JsonSchema
from frazil.registry.kinds import CompatibilityMode

PAIRS = SHAPES.flatmap(lambda shape: st.tuples(st.just(shape), changed(shape)))


def parsed(made: Any) -> AvroSchema:
    return AvroSchema(json.dumps(made))


def written(made: Any, value: Any) -> bytes:
    buffer = io.BytesIO()
    fastavro.schemaless_writer(buffer, fastavro.parse_schema(made), value)
    return buffer.getvalue()


def reasons(new: Definition, old: Definition, mode: CompatibilityMode) -> list[str]:
    return [reason.split(": ", 1)[1] for reason in incompatibilities(new, old, mode)]


@given(SHAPES)
def test_a_schema_is_compatible_with_itself_in_every_mode(shape: Any) -> None:
    made = schema(shape)
    one, same = parsed(made), parsed(made)
    assert one.fingerprint == same.fingerprint
    assert one.backward(same) == one.forward(same) == []
    assert not any(incompatibilities(one, same, mode) for mode in CompatibilityMode)


@given(PAIRS)
def test_backward_is_forward_the_other_way_round(pair: tuple[Any, Any]) -> None:
    one, other = (parsed(schema(shape)) for shape in pair)
    backward = reasons(one, other, CompatibilityMode.BACKWARD)
    forward = reasons(one, other, CompatibilityMode.FORWARD)
    assert backward == reasons(other, one, CompatibilityMode.FORWARD)
    assert forward == reasons(other, one, CompatibilityMode.BACKWARD)
    assert reasons(one, other, CompatibilityMode.FULL) == backward + forward
    assert (one.fingerprint == other.fingerprint) <= (not backward and not forward)


@given(PAIRS)
def test_what_reads_what_agrees_with_the_library_of_apache(pair: tuple[Any, Any]) -> None:
    reader, writer = (schema(shape) for shape in pair)
    theirs = ReaderWriterCompatibilityChecker().get_compatibility(
        avro.schema.parse(json.dumps(reader)), avro.schema.parse(json.dumps(writer))
    )
    readable = theirs.compatibility is SchemaCompatibilityType.compatible
    assert (parsed(reader).backward(parsed(writer)) == []) == readable


@given(PAIRS, st.data())
@settings(max_examples=50)
def test_what_is_said_to_be_readable_is_read(pair: tuple[Any, Any], data: st.DataObject) -> None:
    reader, writer = (schema(shape) for shape in pair)
    if parsed(reader).backward(parsed(writer)):
        reader = writer
    payload = io.BytesIO(written(writer, data.draw(values(writer))))
    fastavro.schemaless_reader(payload, fastavro.parse_schema(writer), fastavro.parse_schema(reader))


@given(SHAPES, st.data())
def test_a_payload_fits_as_a_real_reader_has_it(shape: Any, data: st.DataObject) -> None:
    made = schema(shape)
    check = parsed(made).validator()
    payload = written(made, data.draw(values(made)))
    assert check(payload) is None
    at = data.draw(st.integers(0, len(payload)))
    spoiled = payload[:at] + data.draw(st.binary(max_size=3)) + payload[at + data.draw(st.integers(0, 3)) :]
    if check(spoiled) is None:
        buffer = io.BytesIO(spoiled)
        fastavro.schemaless_reader(buffer, fastavro.parse_schema(made), None)
        assert buffer.tell() == len(spoiled)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3)
    ),
    st.binary(max_size=20),
)
@settings(max_examples=50)
def test_no_payload_makes_a_check_raise(value: Any, raw: bytes) -> None:
    check = JsonSchema('{"type": "object", "required": ["a"]}').validator()
    assert check(raw) is not None
    assert check(json.dumps(value).encode()) is not None


FIELDS = st.dictionaries(st.sampled_from("abc"), st.sampled_from(["string", "integer", "object"]))


@given(FIELDS, st.sets(st.sampled_from("abcd")))
def test_a_json_schema_is_compatible_with_itself_in_every_mode(fields: dict[str, str], required: set[str]) -> None:
    properties = {name: {"type": kind} for name, kind in fields.items()}
    text = json.dumps({"type": "object", "properties": properties, "required": sorted(required)})
    one, same = JsonSchema(text), JsonSchema(text)
    assert one.backward(same) == one.forward(same) == []

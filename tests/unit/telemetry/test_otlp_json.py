"""OTLP's JSON becomes the Protobuf that the same sender would have sent."""

from __future__ import annotations

import base64
import json
import random
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict
from otlp_random import random_request

from frazil.core.errors import InvalidInput
from frazil.telemetry.otlp_json import OBJECTS_MAX, protobuf_of
from frazil.telemetry.requests import REQUESTS
from frazil.telemetry.signals import Signal

IDS = ("traceId", "spanId", "parentSpanId")


def otlp_json(value: Any) -> Any:
    """JSON of Protobuf as OTLP has it: hexadecimal ids."""
    if isinstance(value, list):
        return [otlp_json(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: base64.b64decode(one).hex() if name in IDS and isinstance(one, str) else otlp_json(one)
        for name, one in value.items()
    }


@pytest.mark.parametrize("signal", list(Signal))
def test_json_of_any_request_is_the_request(signal: Signal) -> None:
    rng = random.Random(18)
    for _ in range(150):
        request = random_request(signal, rng)
        given = otlp_json(MessageToDict(request, use_integers_for_enums=True))
        found = REQUESTS[signal].FromString(protobuf_of(signal, json.dumps(given).encode()))
        expected = request.SerializeToString(deterministic=True)
        assert found.SerializeToString(deterministic=True) == expected, given


def span(**fields: Any) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [fields]}]}]}).encode()


def parsed(content: bytes) -> Any:
    request = REQUESTS[Signal.TRACES].FromString(protobuf_of(Signal.TRACES, content))
    return request.resource_spans[0].scope_spans[0].spans[0]


def test_numbers_are_texts_or_numbers_and_ids_have_either_case() -> None:
    found = parsed(span(traceId="0aFF" * 8, startTimeUnixNano="17", endTimeUnixNano=18, kind=2, flags=1.0))
    assert found.trace_id == bytes.fromhex("0aff" * 8)
    assert (found.start_time_unix_nano, found.end_time_unix_nano, found.kind, found.flags) == (17, 18, 2, 1)


def test_unknown_fields_and_nulls_and_names_of_protobuf_are_ignored() -> None:
    found = parsed(span(name="a", newField={"deep": [1]}, trace_id="ff" * 16, attributes=None, status=None))
    assert found.name == "a"
    assert found.trace_id == b""
    assert not found.HasField("status")


def test_a_default_value_of_an_attribute_is_kept() -> None:
    values = [{"intValue": "0"}, {"boolValue": False}, {"stringValue": ""}, {"doubleValue": 0}, {"bytesValue": ""}, {}]
    found = parsed(span(attributes=[{"key": "k", "value": value} for value in values]))
    kinds = [one.value.WhichOneof("value") for one in found.attributes]
    assert kinds == ["int_value", "bool_value", "string_value", "double_value", "bytes_value", None]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"traceId": "xyz"}, "traceId"),
        ({"traceId": 5}, "traceId"),
        ({"name": 5}, "name"),
        ({"startTimeUnixNano": -1}, "startTimeUnixNano"),
        ({"startTimeUnixNano": str(2**64)}, "startTimeUnixNano"),
        ({"startTimeUnixNano": "1_0"}, "startTimeUnixNano"),
        ({"startTimeUnixNano": "٣"}, "startTimeUnixNano"),
        ({"startTimeUnixNano": 1.5}, "startTimeUnixNano"),
        ({"startTimeUnixNano": True}, "startTimeUnixNano"),
        ({"kind": "SERVER"}, "kind"),
        ({"attributes": {}}, "attributes"),
        ({"attributes": [5]}, "attributes"),
        ({"status": []}, "status"),
        ({"attributes": [{"key": "k", "value": {"boolValue": "true"}}]}, "boolValue"),
        ({"attributes": [{"key": "k", "value": {"doubleValue": "infinity"}}]}, "doubleValue"),
        ({"attributes": [{"key": "k", "value": {"bytesValue": "%"}}]}, "bytesValue"),
    ],
)
def test_a_wrong_value_is_an_error_that_names_its_field(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidInput) as told:
        protobuf_of(Signal.TRACES, span(**fields))
    assert told.value.field == field


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"5", b"{", b'{"a": }', b'{"a": "\xff"}', b"[" * 100_000, b'{"a":' * 9_999]
)
def test_what_is_no_json_object_is_an_error(content: bytes) -> None:
    with pytest.raises(InvalidInput) as told:
        protobuf_of(Signal.TRACES, content)
    assert told.value.field == "request"


def test_a_request_of_empty_objects_is_refused_before_it_fills_the_memory() -> None:
    content = b'{"resourceSpans":[' + b"{}," * OBJECTS_MAX + b"{}]}"
    with pytest.raises(InvalidInput) as told:
        protobuf_of(Signal.TRACES, content)
    assert str(OBJECTS_MAX) in told.value.message

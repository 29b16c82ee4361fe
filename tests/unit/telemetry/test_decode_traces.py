"""Requests of spans become rows."""

from __future__ import annotations

from datetime import datetime, timezone

import pyarrow as pa
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from frazil.core.rows import TIME
from frazil.telemetry.decode import decode
from frazil.telemetry.signals import Signal

APPENDED = datetime(2026, 1, 2, 3, 4, 5, 6, timezone.utc)
SENT_NS = 1_767_323_044_000_000_123
"""A second earlier."""


def test_a_span_is_a_row_with_its_resource_and_its_scope() -> None:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add(schema_url="https://a")
    resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    scope = resource.scope_spans.add(schema_url="https://b")
    scope.scope.name = "scope"
    span = scope.spans.add(
        name="buy",
        kind=2,
        trace_id=bytes(range(16)),
        start_time_unix_nano=SENT_NS,
        end_time_unix_nano=SENT_NS + 1,
    )
    span.attributes.add(key="n").value.int_value = 7
    decoded = decode(
        Signal.TRACES,
        pa.array([request.SerializeToString()]),
        pa.array([41]),
        pa.array([APPENDED], TIME),
        3,
    )
    assert decoded.errors.num_rows == 0
    (row,) = decoded.rows["traces"].to_pylist(maps_as_pydicts="strict")
    assert (row["_offset"], row["_topic_partition"], row["_index"], row["_append_time"]) == (41, 3, 0, APPENDED)
    assert (row["time_unix_nano"], row["duration_ns"]) == (SENT_NS, 1)
    assert row["timestamp"] == datetime(2026, 1, 2, 3, 4, 4, 0, timezone.utc)
    assert row["trace_id"] == "000102030405060708090a0b0c0d0e0f"
    assert (row["service_name"], row["scope_name"], row["span_kind"]) == ("shop", "scope", "Server")
    assert (row["resource_schema_url"], row["scope_schema_url"]) == ("https://a", "https://b")
    assert (row["span_attributes"], row["span_attributes_types"]) == ({"n": "7"}, {"n": "int"})

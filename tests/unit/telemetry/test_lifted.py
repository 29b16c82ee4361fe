"""Attributes with columns of their own."""

from __future__ import annotations

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_comparison import APPEND_US

from frazil.core.errors import SchemaMismatch
from frazil.core.rows import TIME
from frazil.telemetry.decode import decode
from frazil.telemetry.schemas import Lifted, LiftedFrom, tables_of
from frazil.telemetry.signals import Signal

ITEM = LiftedFrom.ITEM


def request() -> bytes:
    made = ExportTraceServiceRequest()
    for host in ("h1", None):
        resource = made.resource_spans.add()
        if host:
            resource.resource.attributes.add(key="host").value.string_value = host
        scope = resource.scope_spans.add()
        scope.scope.attributes.add(key="stable").value.bool_value = host is None
        for value in ({"int_value": 5}, {"double_value": 0.5}, {"string_value": "x"}, {"bool_value": True}, {}, None):
            span = scope.spans.add()
            if value is not None:
                span.attributes.add(key="other").value.int_value = 9
                span.attributes.add(key="n", value=value)
    return made.SerializeToString()


def columns(*lifted: Lifted) -> dict[str, list[object]]:
    at = pa.array([APPEND_US]).view(TIME)
    batch = decode(Signal.TRACES, pa.array([request()]), pa.array([0]), at, 0, lifted).rows["traces"]
    batch.validate(full=True)
    assert batch.schema == tables_of(Signal.TRACES, lifted)["traces"]
    return {one.column: batch.column(one.column).to_pylist() for one in lifted}


def test_a_string_column_has_the_text_of_any_value() -> None:
    found = columns(Lifted(ITEM, "n", "n"))
    assert found["n"] == ["5", "0.5", "x", "true", "", None] * 2


def test_other_columns_have_values_of_their_type() -> None:
    found = columns(Lifted(ITEM, "n", "i", "int64"), Lifted(ITEM, "n", "d", "double"), Lifted(ITEM, "n", "b", "bool"))
    assert found["i"] == [5, None, None, None, None, None] * 2
    assert found["d"] == [5.0, 0.5, None, None, None, None] * 2
    assert found["b"] == [None, None, None, True, None, None] * 2


def test_attributes_of_resources_and_scopes_are_lifted_for_each_row() -> None:
    found = columns(Lifted(LiftedFrom.RESOURCE, "host", "host"), Lifted(LiftedFrom.SCOPE, "stable", "stable", "bool"))
    assert found["host"] == ["h1"] * 6 + [None] * 6
    assert found["stable"] == [False] * 6 + [True] * 6


def test_an_attribute_that_nobody_sends_is_null() -> None:
    assert columns(Lifted(ITEM, "absent", "absent", "int64"))["absent"] == [None] * 12


def test_all_tables_of_points_have_the_columns_and_the_table_of_metrics_has_not() -> None:
    lifted = [Lifted(ITEM, "n", "n", "int64")]
    having = {table for table, schema in tables_of(Signal.METRICS, lifted).items() if "n" in schema.names}
    kinds = ("gauge", "sum", "histogram", "exponential_histogram", "summary")
    assert having == {f"metrics_{kind}" for kind in kinds}
    made = ExportMetricsServiceRequest()
    metric = made.resource_metrics.add().scope_metrics.add().metrics.add()
    metric.gauge.data_points.add().attributes.add(key="n").value.int_value = -3
    at = pa.array([APPEND_US]).view(TIME)
    found = decode(Signal.METRICS, pa.array([made.SerializeToString()]), pa.array([0]), at, 0, lifted)
    assert found.rows["metrics_gauge"].column("n").to_pylist() == [-3]


@pytest.mark.parametrize(
    "refused",
    [
        Lifted(ITEM, "n", "Span_Name"),
        Lifted(ITEM, "n", "_own"),
        Lifted(ITEM, "n", ""),
        Lifted(ITEM, "n", "n", "uint64"),
    ],
    ids=lambda one: f"{one.column}-{one.type}",
)
def test_a_column_that_cannot_be_added_is_refused(refused: Lifted) -> None:
    with pytest.raises(SchemaMismatch):
        tables_of(Signal.TRACES, [refused])


def test_two_lifted_attributes_cannot_share_a_column() -> None:
    with pytest.raises(SchemaMismatch):
        tables_of(Signal.TRACES, [Lifted(ITEM, "a", "n"), Lifted(ITEM, "b", "N")])

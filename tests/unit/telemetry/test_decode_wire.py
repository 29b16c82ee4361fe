"""Requests that are not valid, or that are valid and oddly written."""

from __future__ import annotations

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint
from otlp_comparison import APPEND_US, FIRST_OFFSET, PARTITION, assert_same_as_reference, decoded

from frazil.core.rows import TIME
from frazil.telemetry.decode import decode, wire
from frazil.telemetry.signals import Signal


def spans(*names: str) -> bytes:
    request = ExportTraceServiceRequest()
    scope = request.resource_spans.add().scope_spans.add()
    for name in names:
        scope.spans.add(name=name)
    return request.SerializeToString()


def names_of(found: pa.RecordBatch) -> list[str]:
    return found.column("span_name").to_pylist()


BAD = {
    "cut off": spans("abc")[:-1],
    "no field number": b"\x00",
    "bad UTF-8": spans("abc").replace(b"abc", b"\xff\xfe\xfd"),
    "a length near 2^64": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    "a group that does not end": b"\x0b",
    "no Protobuf at all": b"<html></html>",
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_request_is_an_error_and_the_others_are_rows(bad: bytes) -> None:
    found = decoded(Signal.TRACES, [spans("a", "b"), bad, spans("c")])
    rows = found.rows["traces"]
    assert names_of(rows) == ["a", "b", "c"]
    assert rows.column("_offset").to_pylist() == [FIRST_OFFSET, FIRST_OFFSET, FIRST_OFFSET + 2]
    assert rows.column("_index").to_pylist() == [0, 1, 0]
    (error,) = found.errors.to_pylist()
    assert (error["_offset"], error["_topic_partition"], error["_index"]) == (FIRST_OFFSET + 1, PARTITION, None)
    assert error["raw"] == bad
    assert "ExportTraceServiceRequest" in error["reason"]


def test_a_batch_of_bad_requests_has_no_row() -> None:
    found = decoded(Signal.TRACES, [BAD["cut off"], BAD["no field number"]])
    assert found.rows["traces"].num_rows == 0
    assert found.errors.num_rows == 2


def test_of_two_members_of_a_oneof_the_last_one_counts() -> None:
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add()
    record.body.string_value = "first"
    whole = request.SerializeToString()
    body = record.body.SerializeToString()
    second = AnyValue(int_value=2).SerializeToString()
    odd = _within(whole, body, body + second)
    assert ExportLogsServiceRequest.FromString(odd).resource_logs[0].scope_logs[0].log_records[0].body.int_value == 2
    rows = decoded(Signal.LOGS, [odd, whole]).rows["logs"]
    assert rows.column("body").to_pylist() == ["2", "first"]
    assert rows.column("body_type").to_pylist() == ["int", None]


def _within(whole: bytes, old: bytes, new: bytes) -> bytes:
    """Replace the innermost bytes, and correct the lengths (of one byte each) of all messages around them."""
    at = whole.index(old)
    grown = bytearray(whole)
    position = 0
    while position < at:
        grown[position + 1] += len(new) - len(old)
        position += 2
    return bytes(grown).replace(old, new)


def test_of_two_values_of_a_point_the_last_one_counts() -> None:
    request = ExportMetricsServiceRequest()
    point = request.resource_metrics.add().scope_metrics.add().metrics.add().gauge.data_points.add(as_int=1)
    whole, value = request.SerializeToString(), point.SerializeToString()
    odd = _within(whole, value, value + NumberDataPoint(as_double=0.5).SerializeToString())
    rows = decoded(Signal.METRICS, [odd]).rows["metrics_gauge"]
    assert rows.column("value").to_pylist() == [0.5]
    assert rows.column("value_int").to_pylist() == [None]


@pytest.mark.parametrize("group", [b"\xfb\x7f\x08\x01\xfc\x7f", b"\xfb\x7f\x00\x01\xfc\x7f"], ids=["valid", "field 0"])
def test_unknown_groups_are_skipped(group: bytes) -> None:
    ExportTraceServiceRequest.FromString(group)
    found = decoded(Signal.TRACES, [spans("a") + group])
    assert names_of(found.rows["traces"]) == ["a"]


def nested(depth: int, in_lists: bool) -> bytes:
    request = ExportTraceServiceRequest()
    attribute = request.resource_spans.add().scope_spans.add().spans.add().attributes.add(key="deep")
    value = attribute.value
    for _ in range(depth):
        value = value.array_value.values.add() if in_lists else value.kvlist_value.values.add(key="k").value
    value.string_value = "bottom"
    return request.SerializeToString()


@pytest.mark.parametrize("in_lists", [True, False])
def test_values_are_nested_as_deep_as_protobuf_takes_them(in_lists: bool) -> None:
    step = 2 if in_lists else 3
    requests = [nested(depth, in_lists) for depth in (1, 100 // step - 5, 100 // step + 5)]
    assert_same_as_reference(Signal.TRACES, requests)
    found = decoded(Signal.TRACES, requests)
    assert (found.rows["traces"].num_rows, found.errors.num_rows) == (2, 1)


def test_an_array_that_comes_in_two_parts_is_one() -> None:
    request = ExportLogsServiceRequest()
    body = request.resource_logs.add().scope_logs.add().log_records.add().body
    body.array_value.values.add(int_value=1)
    whole, part = request.SerializeToString(), body.SerializeToString()
    rows = decoded(Signal.LOGS, [_within(whole, part, part + part)]).rows["logs"]
    assert rows.column("body").to_pylist() == ["[1,1]"]


def test_a_slice_of_requests_is_decoded_as_such() -> None:
    requests = pa.array([spans("a"), b"\x00", spans("b"), spans("c")], pa.binary()).slice(1, 2)
    found = decode(Signal.TRACES, requests, pa.array([5, 6]), pa.array([APPEND_US] * 2).view(TIME), 0)
    assert names_of(found.rows["traces"]) == ["b"]
    assert found.rows["traces"].column("_offset").to_pylist() == [6]
    assert found.errors.column("_offset").to_pylist() == [5]


def test_a_request_that_only_ptars_refuses_is_an_error_and_the_others_are_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    class PanicException(BaseException):
        """As the one of `ptars`, which no module exports."""

    real = wire._handler(Signal.TRACES)

    class Handler:
        @staticmethod
        def array_to_record_batch(requests: pa.BinaryArray) -> pa.RecordBatch:
            if any(b"panic" in raw for raw in requests.to_pylist()):
                raise PanicException("no")
            return real.array_to_record_batch(requests)

    monkeypatch.setattr(wire, "_handler", lambda signal: Handler)
    found = decoded(Signal.TRACES, [spans("a"), spans("panic"), spans("b"), spans("c")])
    assert names_of(found.rows["traces"]) == ["a", "b", "c"]
    assert found.errors.column("reason").to_pylist() == ["panic: no"]
    assert found.errors.column("_offset").to_pylist() == [FIRST_OFFSET + 1]

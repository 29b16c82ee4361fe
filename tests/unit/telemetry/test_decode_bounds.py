"""What is decoded at once is bounded, whatever is sent."""

from __future__ import annotations

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import NumberDataPoint
from opentelemetry.proto.trace.v1.trace_pb2 import Span
from otlp_comparison import APPEND_US, assert_same_as_reference

from frazil.core.rows import TIME
from frazil.telemetry.decode import Decoded, decode, decode_parts, decoding
from frazil.telemetry.decode.gather import bytes_of
from frazil.telemetry.signals import Signal


def spans(count: int, resource_bytes: int) -> bytes:
    request = ExportTraceServiceRequest()
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="k").value.string_value = "v" * resource_bytes
    resource.scope_spans.add().spans.extend([Span()] * count)
    return request.SerializeToString()


def parts_of(requests: list[bytes], signal: Signal = Signal.TRACES) -> list[Decoded]:
    count = len(requests)
    times = pa.array([APPEND_US] * count, pa.int64()).view(TIME)
    return list(decode_parts(signal, pa.array(requests, pa.binary()), pa.array(range(count), pa.int64()), times))


def offsets_of(part: Decoded) -> list[int]:
    return sorted(set(part.rows["traces"].column("_offset").to_pylist()))


def test_parts_have_few_bytes_of_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    request = spans(1, 100)
    monkeypatch.setattr(decoding, "PART_REQUEST_BYTES_MAX", 2 * len(request) + 1)
    assert [offsets_of(part) for part in parts_of([request] * 5)] == [[0, 1], [2, 3], [4]]
    large = spans(1, 1000)
    assert [offsets_of(part) for part in parts_of([large, request, large, large])] == [[0], [1], [2], [3]]
    assert [offsets_of(part) for part in parts_of([])] == [[]]


def test_parts_have_few_bytes_of_repeated_resources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PART_REPEATED_BYTES_MAX", 50_000)
    parts = parts_of([spans(10, 1000)] * 20)
    assert [offset for part in parts for offset in offsets_of(part)] == list(range(20))
    assert 4 < len(parts) < 20
    assert all(part.rows["traces"].column("resource_attributes").nbytes < 50_000 for part in parts)
    assert sum(part.rows["traces"].num_rows for part in parts) == 200


def test_a_request_whose_rows_would_be_huge_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "PART_REPEATED_BYTES_MAX", 1_000_000)
    huge = spans(20_000, 1_000_000)
    parts = parts_of([spans(1, 1), huge, spans(2, 1)])
    assert sum(part.rows["traces"].num_rows for part in parts) == 3
    (error,) = [row for part in parts for row in part.errors.to_pylist()]
    assert error["_offset"] == 1
    assert error["raw"] == huge
    assert "more than 1073741824" in error["reason"]


def test_a_huge_description_of_a_metric_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    request = ExportMetricsServiceRequest()
    metric = request.resource_metrics.add().scope_metrics.add().metrics.add(description="d" * 10_000)
    metric.gauge.data_points.extend([NumberDataPoint()] * 1000)
    monkeypatch.setattr(decoding, "REQUEST_REPEATED_BYTES_MAX", 1_000_000)
    (part,) = parts_of([request.SerializeToString()], Signal.METRICS)
    assert part.errors.num_rows == 1


def test_parts_together_are_what_is_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = [spans(3, 10), b"\x00", spans(4, 20), spans(1, 5)]
    arguments = (pa.array(requests), pa.array(range(4)), pa.array([APPEND_US] * 4, pa.int64()).view(TIME), 2)
    whole = decode(Signal.TRACES, *arguments)
    monkeypatch.setattr(decoding, "PART_REQUEST_BYTES_MAX", 1)
    pieces = decode(Signal.TRACES, *arguments)
    assert pieces.rows["traces"].equals(whole.rows["traces"])
    assert pieces.errors.equals(whole.errors)


def test_ten_thousand_attributes_with_repeated_keys_are_all_there() -> None:
    request = ExportTraceServiceRequest()
    span = request.resource_spans.add().scope_spans.add().spans.add()
    for number in range(10_000):
        span.attributes.add(key=f"k{number % 7000}").value.int_value = number
    assert_same_as_reference(Signal.TRACES, [request.SerializeToString()])


def test_bytes_are_counted_in_every_type() -> None:
    kind = pa.struct([("t", pa.string()), ("m", pa.map_(pa.string(), pa.string())), ("l", pa.list_(pa.int64()))])
    rows = pa.array([{"t": "abc", "m": [("k", "vvv")], "l": [1, 2]}, {"t": "", "m": [], "l": []}], kind)
    assert bytes_of(rows).tolist() == [(3 + 4) + (4 + 1 + 4 + 3 + 4) + (4 + 16), 4 + 4 + 4]

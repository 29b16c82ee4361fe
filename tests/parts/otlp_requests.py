"""Requests of telemetry with rows that are easy to check, and their appends to a folder that is open."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

import frazil
from frazil.core.clock import SystemClock
from frazil.telemetry.signals import Signal, request_schema

NOT_PROTOBUF = b"\xff\xff not a request"
SERVICES = ("checkout", "cart", "billing")


def now_ns() -> int:
    return SystemClock().now_us() * 1_000


def spans(number: int, count: int = 3, at_ns: int | None = None, **attributes: str) -> bytes:
    """A request of spans of a service, the later ones first."""
    request, at_ns = ExportTraceServiceRequest(), now_ns() if at_ns is None else at_ns
    resource = request.resource_spans.add()
    resource.resource.attributes.add(key="service.name").value.string_value = SERVICES[number % len(SERVICES)]
    scope = resource.scope_spans.add()
    for index in reversed(range(count)):
        span = scope.spans.add(
            trace_id=number.to_bytes(16, "big"),
            span_id=index.to_bytes(8, "big"),
            name=f"span {number}.{index}",
            start_time_unix_nano=at_ns + index * 1_000_000,
            end_time_unix_nano=at_ns + index * 1_000_000 + 500,
        )
        for key, text in attributes.items():
            span.attributes.add(key=key.replace("_", ".")).value.string_value = text
    return request.SerializeToString()


def log_records(number: int, count: int = 3) -> bytes:
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for index in range(count):
        record = scope.log_records.add(time_unix_nano=now_ns(), severity_text="INFO")
        record.body.string_value = f"record {number}.{index}"
    return request.SerializeToString()


def points(number: int, kinds: Sequence[str] = ("gauge", "sum")) -> bytes:
    """A request with a metric of each kind, of two points each."""
    request = ExportMetricsServiceRequest()
    scope = request.resource_metrics.add().scope_metrics.add()
    for kind in kinds:
        data = getattr(scope.metrics.add(name=f"{kind} {number}"), kind)
        data.SetInParent()
        for index in range(2):
            point = data.data_points.add(time_unix_nano=now_ns())
            if kind in ("gauge", "sum"):
                point.as_int = index
    return request.SerializeToString()


def append(storage: frazil.Storage, topic: str, signal: Signal, *requests: bytes) -> list[int]:
    """Append requests as they are, and return their offsets once they are durable."""
    rows: list[dict[str, Any]] = [{"request": request, "items": 0} for request in requests]
    schema = request_schema(signal)
    found = storage.topic(topic, schema=schema).publish_many(pa.RecordBatch.from_pylist(rows, schema=schema))
    return list(range(found.start, found.end))

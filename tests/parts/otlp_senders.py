"""The stock exporters of OpenTelemetry's Python SDK, and samples of each signal with all types of attributes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import grpc
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter as GrpcLogs
from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as GrpcMetrics
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogs
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as HttpMetrics
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from parts.otlp_expected import START_NS

ATTRIBUTES: Mapping[str, Any] = {
    "text": "tea 🍵",
    "empty": "",
    "number": -(2**63),
    "large": 2**63 - 1,
    "fraction": 0.1,
    "flag": True,
    "texts": ("a", "", "b"),
    "numbers": (1, 2),
    "fractions": (0.5,),
    "flags": (True, False),
}
RESOURCE = Resource({"service.name": "checkout", "service.version": "1"})
SECONDS_MAX = 20

Headers = Mapping[str, str]
Send = Callable[[str, Headers], None]
"""Sends one request to an address."""


def _spans(exporter: Any) -> None:
    provider = TracerProvider(resource=RESOURCE)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("tests", "1.2", attributes={"scope": "yes"})
    linked = tracer.start_span("linked", start_time=START_NS)
    linked.end(START_NS + 1)
    span = tracer.start_span(
        "GET /cart", kind=SpanKind.SERVER, attributes=ATTRIBUTES, start_time=START_NS,
        links=[Link(linked.get_span_context(), {"why": "test"})],
    )  # fmt: skip
    span.add_event("cache miss", ATTRIBUTES, START_NS + 5)
    span.set_status(Status(StatusCode.ERROR, "no tea"))
    span.end(START_NS + 1_000_000_007)
    provider.shutdown()


def _records(exporter: Any) -> None:
    provider = LoggerProvider(resource=RESOURCE)
    provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
    logger = provider.get_logger("tests", "1.2")
    for body in ("tea is ready", {"deep": [1, {"er": None}], "bytes": b"\0\xff"}, ATTRIBUTES):
        record = LogRecord(
            timestamp=START_NS, observed_timestamp=START_NS + 1, severity_number=SeverityNumber.WARN2,
            severity_text="warn", body=body, attributes=ATTRIBUTES, event_name="tea",
        )  # fmt: skip
        logger.emit(record)
    provider.shutdown()


def _points(exporter: Any) -> None:
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    views = [View(instrument_name="sizes", aggregation=ExponentialBucketHistogramAggregation())]
    provider = MeterProvider([reader], RESOURCE, views=views)
    meter = provider.get_meter("tests", "1.2")
    meter.create_counter("requests", "1", "how many").add(3, ATTRIBUTES)
    meter.create_up_down_counter("open").add(-2)
    meter.create_gauge("temperature", "Cel").set(81.5, {"cup": 1})
    latency = meter.create_histogram("latency", "ms")
    for value in (0.5, 7, 10_000):
        latency.record(value, {"route": "/cart"})
    sizes = meter.create_histogram("sizes", "By")
    for value in (1, 3, 900_000):
        sizes.record(value)
    provider.shutdown()


def grpc_sender(signal: str, compression: Any = grpc.Compression.NoCompression) -> Send:
    make, run = {"traces": (GrpcSpans, _spans), "logs": (GrpcLogs, _records), "metrics": (GrpcMetrics, _points)}[signal]

    def send(address: str, headers: Headers) -> None:
        given = tuple(headers.items())
        run(make(endpoint=address, insecure=True, headers=given, compression=compression, timeout=SECONDS_MAX))

    return send


def http_sender(signal: str, compression: Compression = Compression.NoCompression) -> Send:
    make, run = {"traces": (HttpSpans, _spans), "logs": (HttpLogs, _records), "metrics": (HttpMetrics, _points)}[signal]

    def send(address: str, headers: Headers) -> None:
        where = f"{address}/v1/{signal}"
        run(make(endpoint=where, headers=dict(headers), compression=compression, timeout=SECONDS_MAX))

    return send

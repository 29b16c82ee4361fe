"""Requests of telemetry for tests: built with the stock messages, appended as the doors append them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from frazil.core.clock import SystemClock
from frazil.node.telemetry.publishing import request_batch
from frazil.telemetry.requests import REQUESTS
from frazil.telemetry.signals import DEFAULT_DATASET, Signal, request_schema, topic_of_signal

START_NS = (SystemClock().now_us() // 1_000_000 - 3_600) * 1_000_000_000
"""An hour ago, a whole second. Rows that are older by a month have the time of their append."""


def attributes(message: Any, given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        one = message.attributes.add(key=key)
        kinds = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}
        setattr(one.value, kinds[type(value)], value)


def spans(service: str, *given: Mapping[str, Any]) -> bytes:
    """A request of spans: trace, id, parent, name, start_ns, duration_ns, status (0, 1, 2), events, attributes."""
    request = REQUESTS[Signal.TRACES]()
    resource = request.resource_spans.add()
    attributes(resource.resource, {"service.name": service})
    scope = resource.scope_spans.add()
    for one in given:
        start = START_NS + one.get("start_ns", 0)
        span = scope.spans.add(
            trace_id=bytes.fromhex(one["trace"]),
            span_id=bytes.fromhex(one["id"]),
            parent_span_id=bytes.fromhex(one.get("parent", "")),
            name=one.get("name", "work"),
            kind=one.get("kind", 1),
            start_time_unix_nano=start,
            end_time_unix_nano=start + one.get("duration_ns", 1_000_000),
        )
        span.status.code = one.get("status", 0)
        span.status.message = one.get("message", "")
        attributes(span, one.get("attributes", {}))
        for at_ns, name in one.get("events", ()):
            span.events.add(time_unix_nano=START_NS + at_ns, name=name)
    return bytes(request.SerializeToString())


def records(service: str, *given: Mapping[str, Any]) -> bytes:
    """A request of log records. A record has body, severity, at_ns, trace, span and attributes."""
    request = REQUESTS[Signal.LOGS]()
    resource = request.resource_logs.add()
    attributes(resource.resource, {"service.name": service})
    scope = resource.scope_logs.add()
    for one in given:
        record = scope.log_records.add(
            time_unix_nano=START_NS + one.get("at_ns", 0),
            severity_number=one.get("severity", 9),
            severity_text=one.get("text", ""),
            trace_id=bytes.fromhex(one.get("trace", "")),
            span_id=bytes.fromhex(one.get("span", "")),
        )
        record.body.string_value = one["body"]
        attributes(record, one.get("attributes", {}))
    return bytes(request.SerializeToString())


def metrics(service: str) -> tuple[Any, Any]:
    """An empty request of metrics, and its scope, to which metrics are added."""
    request = REQUESTS[Signal.METRICS]()
    resource = request.resource_metrics.add()
    attributes(resource.resource, {"service.name": service})
    return request, resource.scope_metrics.add()


def send(
    storage: Any, signal: Signal, requests: Sequence[bytes], tenant: str = "acme", dataset: str = DEFAULT_DATASET
) -> Any:
    """Append requests to the topic of their signal, and return the topic."""
    name = str(topic_of_signal(tenant, dataset, signal))
    topic = storage.topic(name, schema=request_schema(signal))
    for one in requests:
        topic.publish_many(request_batch(signal, one, 1))
    return topic


def trace(number: int) -> str:
    return f"{number:032x}"


def span(number: int) -> str:
    return f"{number:016x}"

"""A plain decoder: a loop over the messages as `protobuf` parses them. Values are those of `otlp_values`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf.message import DecodeError, Message
from otlp_values import of_attributes, of_double, of_message

from frazil.telemetry.requests import REQUESTS
from frazil.telemetry.signals import Signal

Row = dict[str, Any]

SPAN_KINDS = ["Unspecified", "Internal", "Server", "Client", "Producer", "Consumer"]
STATUS_CODES = ["Unset", "Ok", "Error"]
TEMPORALITIES = ["Unspecified", "Delta", "Cumulative"]
METRIC_TYPES = {
    None: "Empty",
    "gauge": "Gauge",
    "sum": "Sum",
    "histogram": "Histogram",
    "exponential_histogram": "ExponentialHistogram",
    "summary": "Summary",
}
WRAP = 2**64
DAY_US = 86_400_000_000


def parsed(signal: Signal, raw: bytes) -> Message | None:
    """The request, or None if it is not a valid one."""
    try:
        return REQUESTS[signal].FromString(raw)
    except DecodeError:
        return None


def reference_rows(signal: Signal, request: Any, append_us: int) -> Iterator[tuple[str, Row]]:
    """Each row of a request, with its table."""
    index = metric_index = -1
    for resource in getattr(request, f"resource_{'spans' if signal is Signal.TRACES else signal}"):
        for scope in getattr(resource, f"scope_{'spans' if signal is Signal.TRACES else signal}"):
            context = _context(resource, scope)
            if signal is Signal.TRACES:
                for span in scope.spans:
                    index += 1
                    yield "traces", {"_index": index, **context, **_span(span, append_us)}
            elif signal is Signal.LOGS:
                for record in scope.log_records:
                    index += 1
                    yield "logs", {"_index": index, **context, **_log_record(record, append_us)}
            else:
                for metric in scope.metrics:
                    metric_index += 1
                    yield "metrics", {"_index": metric_index, **_metric(metric, context, append_us)}
                    for point in _points(metric):
                        index += 1
                        row = {"_index": index, "metric_index": metric_index, **context}
                        yield f"metrics_{_kind(metric)}", {**row, **_point(metric, point, append_us)}


def _context(resource: Any, scope: Any) -> Row:
    return {
        "service_name": next(
            (_text(one) for key, one in of_attributes(resource.resource.attributes) if key == "service.name"), ""
        ),
        "resource_attributes": of_attributes(resource.resource.attributes),
        "resource_dropped_attributes_count": resource.resource.dropped_attributes_count,
        "resource_entity_refs": [
            {
                "schema_url": ref.schema_url,
                "type": ref.type,
                "id_keys": list(ref.id_keys),
                "description_keys": list(ref.description_keys),
            }
            for ref in resource.resource.entity_refs
        ]
        or None,
        "resource_schema_url": resource.schema_url,
        "scope_name": scope.scope.name,
        "scope_version": scope.scope.version,
        "scope_attributes": of_attributes(scope.scope.attributes),
        "scope_dropped_attributes_count": scope.scope.dropped_attributes_count,
        "scope_schema_url": scope.schema_url,
    }


def _text(values: list[Any]) -> Any:
    """The text of `service.name`, where it is told by value; ... for values whose text is another test's."""
    match values:
        case [("string", text)]:
            return text
        case [("int", number)]:
            return str(number)
        case [("bool", truth)]:
            return str(truth).lower()
        case [("empty",)]:
            return ""
        case _:
            return ...


def _name(names: list[str], number: int) -> str:
    return names[number] if 0 <= number < len(names) else str(number)


def _timestamp(append_us: int, *nanoseconds: int) -> int:
    sent = next((one // 1000 for one in nanoseconds if one), append_us)
    return sent if append_us - 31 * DAY_US <= sent <= append_us + DAY_US else append_us


def _span(span: Any, append_us: int) -> Row:
    return {
        "timestamp": _timestamp(append_us, span.start_time_unix_nano, span.end_time_unix_nano),
        "time_unix_nano": span.start_time_unix_nano,
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_span_id": span.parent_span_id.hex(),
        "trace_state": span.trace_state,
        "span_name": span.name,
        "span_kind": _name(SPAN_KINDS, span.kind),
        "span_attributes": of_attributes(span.attributes),
        "dropped_attributes_count": span.dropped_attributes_count,
        "duration_ns": (span.end_time_unix_nano - span.start_time_unix_nano) % WRAP,
        "status_code": _name(STATUS_CODES, span.status.code),
        "status_message": span.status.message,
        "flags": span.flags,
        "events": [
            {
                "timestamp": event.time_unix_nano // 1000,
                "time_unix_nano": event.time_unix_nano,
                "name": event.name,
                "attributes": of_attributes(event.attributes),
                "dropped_attributes_count": event.dropped_attributes_count,
            }
            for event in span.events
        ],
        "dropped_events_count": span.dropped_events_count,
        "links": [
            {
                "trace_id": link.trace_id.hex(),
                "span_id": link.span_id.hex(),
                "trace_state": link.trace_state,
                "attributes": of_attributes(link.attributes),
                "dropped_attributes_count": link.dropped_attributes_count,
                "flags": link.flags,
            }
            for link in span.links
        ],
        "dropped_links_count": span.dropped_links_count,
    }


def _log_record(record: Any, append_us: int) -> Row:
    return {
        "timestamp": _timestamp(append_us, record.time_unix_nano, record.observed_time_unix_nano),
        "time_unix_nano": record.time_unix_nano,
        "observed_time_unix_nano": record.observed_time_unix_nano,
        "trace_id": record.trace_id.hex(),
        "span_id": record.span_id.hex(),
        "trace_flags": record.flags,
        "severity_text": record.severity_text,
        "severity_number": record.severity_number,
        "body": of_message(record.body),
        "event_name": record.event_name,
        "log_attributes": of_attributes(record.attributes),
        "dropped_attributes_count": record.dropped_attributes_count,
    }


def _kind(metric: Any) -> str | None:
    return metric.WhichOneof("data")


def _points(metric: Any) -> list[Any]:
    kind = _kind(metric)
    return list(getattr(metric, kind).data_points) if kind else []


def _metric(metric: Any, context: Row, append_us: int) -> Row:
    kind = _kind(metric)
    points = _points(metric)
    temporal = kind in ("sum", "histogram", "exponential_histogram")
    return {
        "timestamp": _timestamp(append_us, *[point.time_unix_nano for point in points[:1]]),
        **{name: context[name] for name in ("service_name", "scope_name", "scope_version")},
        **_names(metric),
        "metric_type": METRIC_TYPES[kind],
        "aggregation_temporality": _temporality(getattr(metric, kind)) if kind and temporal else None,
        "is_monotonic": metric.sum.is_monotonic if kind == "sum" else None,
        "data_points": len(points),
        "metadata": of_attributes(metric.metadata),
    }


def _names(metric: Any) -> Row:
    return {
        "metric_name": metric.name,
        "metric_description": metric.description,
        "metric_unit": metric.unit,
    }


def _temporality(data: Any) -> str:
    return _name(TEMPORALITIES, data.aggregation_temporality)


def _point(metric: Any, point: Any, append_us: int) -> Row:
    row = {
        "timestamp": _timestamp(append_us, point.time_unix_nano),
        "time_unix_nano": point.time_unix_nano,
        "start_time_unix_nano": point.start_time_unix_nano,
        **_names(metric),
        "attributes": of_attributes(point.attributes),
        "flags": point.flags,
    }
    kind = _kind(metric)
    if kind in ("gauge", "sum"):
        row |= _number(point)
    if kind == "sum":
        row["is_monotonic"] = metric.sum.is_monotonic
    if kind != "summary":
        row["exemplars"] = [_exemplar(one) for one in point.exemplars]
    if kind in ("sum", "histogram", "exponential_histogram"):
        row["aggregation_temporality"] = _temporality(getattr(metric, kind))
    if kind in ("histogram", "exponential_histogram"):
        row |= {name: _optional(point, name) for name in ("sum", "min", "max")} | {"count": point.count}
    if kind == "histogram":
        row["bucket_counts"] = list(point.bucket_counts)
        row["explicit_bounds"] = [of_double(one) for one in point.explicit_bounds]
    if kind == "exponential_histogram":
        row |= _exponential(point)
    if kind == "summary":
        row |= {"count": point.count, "sum": of_double(point.sum)}
        row["quantile_values"] = [
            {"quantile": of_double(one.quantile), "value": of_double(one.value)} for one in point.quantile_values
        ]
    return row


def _number(point: Any) -> Row:
    match point.WhichOneof("value"):
        case "as_int":
            return {"value": of_double(float(point.as_int)), "value_int": point.as_int}
        case "as_double":
            return {"value": of_double(point.as_double), "value_int": None}
        case _:
            return {"value": None, "value_int": None}


def _exemplar(exemplar: Any) -> Row:
    return {
        "timestamp": exemplar.time_unix_nano // 1000,
        "time_unix_nano": exemplar.time_unix_nano,
        **_number(exemplar),
        "trace_id": exemplar.trace_id.hex(),
        "span_id": exemplar.span_id.hex(),
        "filtered_attributes": of_attributes(exemplar.filtered_attributes),
    }


def _optional(point: Any, name: str) -> Any:
    return of_double(getattr(point, name)) if point.HasField(name) else None


def _exponential(point: Any) -> Row:
    row = {
        "scale": point.scale,
        "zero_count": point.zero_count,
        "zero_threshold": of_double(point.zero_threshold),
    }
    for side in ("positive", "negative"):
        buckets = getattr(point, side)
        row[f"{side}_offset"] = buckets.offset if point.HasField(side) else None
        row[f"{side}_bucket_counts"] = list(buckets.bucket_counts)
    return row

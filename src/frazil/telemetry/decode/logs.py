"""The rows of log records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from frazil.telemetry.decode.assembly import batch_of
from frazil.telemetry.decode.attributes import attributes_of
from frazil.telemetry.decode.columns import bits_of, event_times, hex_of, widened
from frazil.telemetry.decode.context import Context
from frazil.telemetry.decode.gather import Gather
from frazil.telemetry.decode.head import Head
from frazil.telemetry.decode.levels import items_of
from frazil.telemetry.decode.values import texts_of, types_of
from frazil.telemetry.schemas import Lifted


def log_rows(
    resources: pa.ListArray, head: Head, gather: Gather, tables: Mapping[str, pa.Schema], lifted: Sequence[Lifted]
) -> Mapping[str, pa.RecordBatch]:
    """Return one row per log record."""
    items = items_of(resources, "scope_logs", "log_records")
    context = Context(items, gather)
    records = items.values
    attributes = attributes_of(records.field("attributes"))
    bodies = texts_of(records.field("body"))
    own = head.columns(items.request, items.index)
    sent, observed = records.field("time_unix_nano"), records.field("observed_time_unix_nano")
    columns = {
        **own,
        "timestamp": event_times(own["_append_time"], sent, observed),
        "time_unix_nano": bits_of(sent),
        "observed_time_unix_nano": bits_of(observed),
        "trace_id": hex_of(records.field("trace_id")),
        "span_id": hex_of(records.field("span_id")),
        "trace_flags": widened(records.field("flags")),
        "severity_text": records.field("severity_text"),
        "severity_number": records.field("severity_number"),
        "body": bodies.texts,
        "body_type": types_of(bodies.kinds),
        "event_name": records.field("event_name"),
        **context.columns(items.resource, items.scope),
        **attributes.columns("log_attributes"),
        "dropped_attributes_count": widened(records.field("dropped_attributes_count")),
        **context.lifted_columns(lifted, attributes, items.resource, items.scope),
    }
    return {"logs": batch_of(columns, tables["logs"])}

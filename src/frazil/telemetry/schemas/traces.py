"""The table of spans."""

from __future__ import annotations

import pyarrow as pa

from frazil.core.rows import TIME
from frazil.telemetry.schemas.shared import CONTEXT, HEAD, TIMESTAMP, UNSIGNED_32, UNSIGNED_64, attributes

EVENT = pa.struct(
    [
        pa.field("timestamp", TIME),
        pa.field("time_unix_nano", UNSIGNED_64),
        pa.field("name", pa.string()),
        *attributes("attributes"),
        pa.field("dropped_attributes_count", UNSIGNED_32),
    ]
)

LINK = pa.struct(
    [
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("trace_state", pa.string()),
        *attributes("attributes"),
        pa.field("dropped_attributes_count", UNSIGNED_32),
        pa.field("flags", UNSIGNED_32),
    ]
)

TRACES = pa.schema(
    [
        *HEAD,
        TIMESTAMP,
        pa.field("time_unix_nano", UNSIGNED_64),
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("parent_span_id", pa.string()),
        pa.field("trace_state", pa.string()),
        pa.field("span_name", pa.string()),
        pa.field("span_kind", pa.string()),
        *CONTEXT,
        *attributes("span_attributes"),
        pa.field("dropped_attributes_count", UNSIGNED_32),
        pa.field("duration_ns", pa.int64()),
        pa.field("status_code", pa.string()),
        pa.field("status_message", pa.string()),
        pa.field("flags", UNSIGNED_32),
        pa.field("events", pa.list_(EVENT)),
        pa.field("dropped_events_count", UNSIGNED_32),
        pa.field("links", pa.list_(LINK)),
        pa.field("dropped_links_count", UNSIGNED_32),
    ]
)

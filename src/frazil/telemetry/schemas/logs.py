"""The table of log records."""

from __future__ import annotations

import pyarrow as pa

from frazil.telemetry.schemas.shared import CONTEXT, HEAD, TIMESTAMP, UNSIGNED_32, UNSIGNED_64, attributes

LOGS = pa.schema(
    [
        *HEAD,
        TIMESTAMP,
        pa.field("time_unix_nano", UNSIGNED_64),
        pa.field("observed_time_unix_nano", UNSIGNED_64),
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        pa.field("trace_flags", UNSIGNED_32),
        pa.field("severity_text", pa.string()),
        pa.field("severity_number", pa.int32()),
        pa.field("body", pa.string()),
        pa.field("body_type", pa.string()),
        pa.field("event_name", pa.string()),
        *CONTEXT,
        *attributes("log_attributes"),
        pa.field("dropped_attributes_count", UNSIGNED_32),
    ]
)
"""`body_type` is null for a string, as strings have no entry in the maps of types."""

"""The rows of spans."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from frazil.telemetry.decode.assembly import batch_of, lists_of
from frazil.telemetry.decode.attributes import attributes_of
from frazil.telemetry.decode.columns import bits_of, event_times, hex_of, names_of, timestamps, widened
from frazil.telemetry.decode.context import Context
from frazil.telemetry.decode.gather import Gather
from frazil.telemetry.decode.head import Head
from frazil.telemetry.decode.levels import items_of
from frazil.telemetry.schemas import Lifted
from frazil.telemetry.schemas.traces import EVENT, LINK

KINDS = ("Unspecified", "Internal", "Server", "Client", "Producer", "Consumer")
STATUS_CODES = ("Unset", "Ok", "Error")


def trace_rows(
    resources: pa.ListArray, head: Head, gather: Gather, tables: Mapping[str, pa.Schema], lifted: Sequence[Lifted]
) -> Mapping[str, pa.RecordBatch]:
    """Return one row per span."""
    items = items_of(resources, "scope_spans", "spans")
    context = Context(items, gather)
    spans = items.values
    attributes = attributes_of(spans.field("attributes"))
    own = head.columns(items.request, items.index)
    start, end = spans.field("start_time_unix_nano"), spans.field("end_time_unix_nano")
    status = spans.field("status")
    columns = {
        **own,
        "timestamp": event_times(own["_append_time"], start, end),
        "time_unix_nano": bits_of(start),
        "trace_id": hex_of(spans.field("trace_id")),
        "span_id": hex_of(spans.field("span_id")),
        "parent_span_id": hex_of(spans.field("parent_span_id")),
        "trace_state": spans.field("trace_state"),
        "span_name": spans.field("name"),
        "span_kind": names_of(spans.field("kind"), KINDS),
        **context.columns(items.resource, items.scope),
        **attributes.columns("span_attributes"),
        "dropped_attributes_count": widened(spans.field("dropped_attributes_count")),
        "duration_ns": _difference(end, start),
        "status_code": names_of(status.field("code"), STATUS_CODES),
        "status_message": status.field("message"),
        "flags": widened(spans.field("flags")),
        "events": _events(spans.field("events")),
        "dropped_events_count": widened(spans.field("dropped_events_count")),
        "links": _links(spans.field("links")),
        "dropped_links_count": widened(spans.field("dropped_links_count")),
        **context.lifted_columns(lifted, attributes, items.resource, items.scope),
    }
    return {"traces": batch_of(columns, tables["traces"])}


def _difference(end: pa.UInt64Array, start: pa.UInt64Array) -> pa.Int64Array:
    """Return `end - start` modulo 2^64: negative where a span ends before it starts."""
    return pa.array((end.to_numpy() - start.to_numpy()).view(np.int64))


def _events(lists: pa.ListArray) -> pa.ListArray:
    events = lists.values
    times = events.field("time_unix_nano")
    return lists_of(
        lists,
        EVENT,
        {
            "timestamp": timestamps(times),
            "time_unix_nano": bits_of(times),
            "name": events.field("name"),
            **attributes_of(events.field("attributes")).columns("attributes"),
            "dropped_attributes_count": widened(events.field("dropped_attributes_count")),
        },
    )


def _links(lists: pa.ListArray) -> pa.ListArray:
    links = lists.values
    return lists_of(
        lists,
        LINK,
        {
            "trace_id": hex_of(links.field("trace_id")),
            "span_id": hex_of(links.field("span_id")),
            "trace_state": links.field("trace_state"),
            **attributes_of(links.field("attributes")).columns("attributes"),
            "dropped_attributes_count": widened(links.field("dropped_attributes_count")),
            "flags": widened(links.field("flags")),
        },
    )

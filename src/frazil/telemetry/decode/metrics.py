"""The rows of metrics and of their points."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from frazil.telemetry.decode.assembly import batch_of
from frazil.telemetry.decode.attributes import attributes_of
from frazil.telemetry.decode.columns import bits_of, event_times, names_of
from frazil.telemetry.decode.context import Context
from frazil.telemetry.decode.gather import Gather
from frazil.telemetry.decode.head import Head
from frazil.telemetry.decode.levels import Indices, Items, index_within, items_of, lengths, unnested
from frazil.telemetry.decode.points import columns_of_kind
from frazil.telemetry.decode.wire import NotCanonicalError
from frazil.telemetry.schemas import Lifted

KINDS = {
    "gauge": "Gauge",
    "sum": "Sum",
    "histogram": "Histogram",
    "exponential_histogram": "ExponentialHistogram",
    "summary": "Summary",
}
"""Kinds of metrics: as OTLP and its tables name them, and as `metric_type` does. A metric without data is `Empty`."""

TEMPORALITIES = ("Unspecified", "Delta", "Cumulative")


def metric_rows(
    resources: pa.ListArray, head: Head, gather: Gather, tables: Mapping[str, pa.Schema], lifted: Sequence[Lifted]
) -> Mapping[str, pa.RecordBatch]:
    """Return one row per metric, and one per point in the table of its kind."""
    metrics = _Metrics(resources, head, gather)
    rows = {"metrics": batch_of(metrics.columns(), tables["metrics"])}
    for kind in KINDS:
        table = f"metrics_{kind}"
        if metrics.has_points(kind):
            rows[table] = batch_of(metrics.columns_of_points(kind, lifted), tables[table])
    return rows


class _Metrics:
    """The metrics of requests, and the points of each kind."""

    def __init__(self, resources: pa.ListArray, head: Head, gather: Gather) -> None:
        self._head = head
        self._gather = gather
        self._items = items_of(resources, "scope_metrics", "metrics")
        self._context = Context(self._items, gather)
        self._data = {kind: self._items.values.field(kind) for kind in KINDS}
        self._has = {kind: data.is_valid().to_numpy(zero_copy_only=False) for kind, data in self._data.items()}
        if (sum(has.astype(np.int8) for has in self._has.values()) > 1).any():
            raise NotCanonicalError
        self._points = {kind: data.field("data_points") for kind, data in self._data.items()}
        self._lengths = sum(
            (lengths(points) for points in self._points.values()), np.zeros(len(self._items.values), np.int64)
        )
        self._first_index = _first_indices(self._items, self._lengths)
        values = self._items.values
        self._names = {
            "metric_name": values.field("name"),
            "metric_description": values.field("description"),
            "metric_unit": values.field("unit"),
        }

    def has_points(self, kind: str) -> bool:
        return len(self._points[kind].values) > 0

    def columns(self) -> dict[str, pa.Array]:
        """Return the columns of the table `metrics`."""
        items = self._items
        own = self._head.columns(items.request, items.index)
        return {
            **own,
            "timestamp": event_times(own["_append_time"], self._times_of_first_points()),
            **self._context.names(items.resource, items.scope),
            **self._names,
            "metric_type": self._types(),
            "aggregation_temporality": self._temporalities(),
            "is_monotonic": pc.if_else(pa.array(self._has["sum"]), self._data["sum"].field("is_monotonic"), None),
            "data_points": pa.array(self._lengths.astype(np.int32)),
            **attributes_of(items.values.field("metadata")).columns("metadata"),
        }

    def columns_of_points(self, kind: str, lifted: Sequence[Lifted]) -> dict[str, pa.Array]:
        """Return the columns of the table of a kind."""
        points, metric = unnested(self._points[kind])
        items = self._items
        own = self._head.columns(items.request[metric], self._first_index[metric] + index_within(metric))
        attributes = attributes_of(points.field("attributes"))
        resource, scope = items.resource[metric], items.scope[metric]
        times = points.field("time_unix_nano")
        return {
            **own,
            "timestamp": event_times(own["_append_time"], times),
            "time_unix_nano": bits_of(times),
            "start_time_unix_nano": bits_of(points.field("start_time_unix_nano")),
            "metric_index": pa.array(items.index[metric].astype(np.int32)),
            **self._gather.take({**self._names, **self._of_kind(kind)}, metric),
            **self._context.columns(resource, scope),
            **attributes.columns("attributes"),
            **columns_of_kind(kind, points),
            **self._context.lifted_columns(lifted, attributes, resource, scope),
        }

    def _of_kind(self, kind: str) -> dict[str, pa.Array]:
        """Return the columns that the points of a metric share."""
        data = self._data[kind]
        columns = {}
        if kind in ("sum", "histogram", "exponential_histogram"):
            columns["aggregation_temporality"] = names_of(data.field("aggregation_temporality"), TEMPORALITIES)
        if kind == "sum":
            columns["is_monotonic"] = data.field("is_monotonic")
        return columns

    def _types(self) -> pa.StringArray:
        kinds = np.zeros(len(self._items.values), np.int8)
        for number, has in enumerate(self._has.values(), 1):
            kinds[has] = number
        return pa.array(["Empty", *KINDS.values()]).take(pa.array(kinds))

    def _temporalities(self) -> pa.StringArray:
        found = pa.nulls(len(self._items.values), pa.string())
        for kind in ("sum", "histogram", "exponential_histogram"):
            found = pc.if_else(pa.array(self._has[kind]), self._of_kind(kind)["aggregation_temporality"], found)
        return found

    def _times_of_first_points(self) -> pa.UInt64Array:
        times = np.zeros(len(self._items.values), np.uint64)
        for points in self._points.values():
            has = lengths(points) > 0
            times[has] = points.values.field("time_unix_nano").to_numpy()[points.offsets.to_numpy()[:-1][has]]
        return pa.array(times)


def _first_indices(items: Items, counts: np.ndarray) -> Indices:
    """Return the position of the first point of each metric among all points of its request."""
    before: np.ndarray = np.cumsum(counts) - counts
    firsts = items.index == 0
    before -= before[firsts][np.cumsum(firsts) - 1]
    return before

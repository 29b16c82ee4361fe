"""The tables of metrics: one of the metrics themselves, and one of the points of each kind."""

from __future__ import annotations

import pyarrow as pa

from frazil.core.rows import TIME
from frazil.telemetry.schemas.shared import CONTEXT, HEAD, TIMESTAMP, UNSIGNED_32, UNSIGNED_64, attributes

METRICS = pa.schema(
    [
        *HEAD,
        TIMESTAMP,
        pa.field("service_name", pa.string(), nullable=False),
        pa.field("scope_name", pa.string()),
        pa.field("scope_version", pa.string()),
        pa.field("metric_name", pa.string()),
        pa.field("metric_description", pa.string()),
        pa.field("metric_unit", pa.string()),
        pa.field("metric_type", pa.string()),
        pa.field("aggregation_temporality", pa.string()),
        pa.field("is_monotonic", pa.bool_()),
        pa.field("data_points", pa.int32()),
        *attributes("metadata"),
    ]
)

EXEMPLAR = pa.struct(
    [
        pa.field("timestamp", TIME),
        pa.field("time_unix_nano", UNSIGNED_64),
        pa.field("value", pa.float64()),
        pa.field("value_int", pa.int64()),
        pa.field("trace_id", pa.string()),
        pa.field("span_id", pa.string()),
        *attributes("filtered_attributes"),
    ]
)

QUANTILE = pa.struct([pa.field("quantile", pa.float64()), pa.field("value", pa.float64())])

_POINT = (
    *HEAD,
    TIMESTAMP,
    pa.field("time_unix_nano", UNSIGNED_64),
    pa.field("start_time_unix_nano", UNSIGNED_64),
    pa.field("metric_index", pa.int32()),
    pa.field("metric_name", pa.string()),
    pa.field("metric_description", pa.string()),
    pa.field("metric_unit", pa.string()),
    *CONTEXT,
    *attributes("attributes"),
)
"""`metric_index` is the `_index` of the metric's row in the table `metrics`."""

_NUMBER = (pa.field("value", pa.float64()), pa.field("value_int", pa.int64()))
_TEMPORALITY = pa.field("aggregation_temporality", pa.string())
_EXEMPLARS = pa.field("exemplars", pa.list_(EXEMPLAR))
_FLAGS = pa.field("flags", UNSIGNED_32)
_STATISTICS = (
    pa.field("count", UNSIGNED_64),
    pa.field("sum", pa.float64()),
    pa.field("min", pa.float64()),
    pa.field("max", pa.float64()),
)

GAUGE = pa.schema([*_POINT, *_NUMBER, _FLAGS, _EXEMPLARS])

SUM = pa.schema([*_POINT, *_NUMBER, _TEMPORALITY, pa.field("is_monotonic", pa.bool_()), _FLAGS, _EXEMPLARS])

HISTOGRAM = pa.schema(
    [
        *_POINT,
        *_STATISTICS,
        pa.field("bucket_counts", pa.list_(UNSIGNED_64)),
        pa.field("explicit_bounds", pa.list_(pa.float64())),
        _TEMPORALITY,
        _FLAGS,
        _EXEMPLARS,
    ]
)

EXPONENTIAL_HISTOGRAM = pa.schema(
    [
        *_POINT,
        *_STATISTICS,
        pa.field("scale", pa.int32()),
        pa.field("zero_count", UNSIGNED_64),
        pa.field("zero_threshold", pa.float64()),
        pa.field("positive_offset", pa.int32()),
        pa.field("positive_bucket_counts", pa.list_(UNSIGNED_64)),
        pa.field("negative_offset", pa.int32()),
        pa.field("negative_bucket_counts", pa.list_(UNSIGNED_64)),
        _TEMPORALITY,
        _FLAGS,
        _EXEMPLARS,
    ]
)
"""The offset of a side without buckets is null."""

SUMMARY = pa.schema(
    [
        *_POINT,
        pa.field("count", UNSIGNED_64),
        pa.field("sum", pa.float64()),
        pa.field("quantile_values", pa.list_(QUANTILE)),
        _FLAGS,
    ]
)

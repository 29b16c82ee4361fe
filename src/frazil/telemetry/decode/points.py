"""The columns that the points of one kind of metric have."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
import pyarrow.compute as pc

from frazil.telemetry.decode.assembly import lists_of
from frazil.telemetry.decode.attributes import attributes_of
from frazil.telemetry.decode.columns import bits_of, hex_of, timestamps, widened
from frazil.telemetry.decode.wire import NotCanonicalError
from frazil.telemetry.schemas.metrics import EXEMPLAR, QUANTILE


def columns_of_kind(kind: str, points: pa.StructArray) -> dict[str, pa.Array]:
    """Return the columns that only the points of this kind have, and the flags."""
    return {**_OF_KIND[kind](points), "flags": widened(points.field("flags"))}


def _number(points: pa.StructArray) -> dict[str, pa.Array]:
    return {**_values(points), "exemplars": _exemplars(points.field("exemplars"))}


def _histogram(points: pa.StructArray) -> dict[str, pa.Array]:
    bounds = points.field("explicit_bounds")
    return {
        **_statistics(points),
        "bucket_counts": _counts(points.field("bucket_counts")),
        "explicit_bounds": pa.ListArray.from_arrays(bounds.offsets, bounds.values),
    }


def _exponential_histogram(points: pa.StructArray) -> dict[str, pa.Array]:
    return {
        **_statistics(points),
        "scale": points.field("scale"),
        "zero_count": bits_of(points.field("zero_count")),
        "zero_threshold": points.field("zero_threshold"),
        **_buckets("positive", points),
        **_buckets("negative", points),
    }


def _summary(points: pa.StructArray) -> dict[str, pa.Array]:
    quantiles = points.field("quantile_values")
    return {
        "count": bits_of(points.field("count")),
        "sum": points.field("sum"),
        "quantile_values": lists_of(
            quantiles,
            QUANTILE,
            {"quantile": quantiles.values.field("quantile"), "value": quantiles.values.field("value")},
        ),
    }


_OF_KIND: Mapping[str, Callable[[pa.StructArray], dict[str, pa.Array]]] = {
    "gauge": _number,
    "sum": _number,
    "histogram": _histogram,
    "exponential_histogram": _exponential_histogram,
    "summary": _summary,
}


def _values(points: pa.StructArray) -> dict[str, pa.Array]:
    """Return numbers as doubles, and integers exactly beside them."""
    doubles, ints = points.field("as_double"), points.field("as_int")
    if ints.null_count == len(ints):
        return {"value": doubles, "value_int": ints}
    if pc.any(pc.and_(doubles.is_valid(), ints.is_valid())).as_py():
        raise NotCanonicalError
    return {"value": pc.coalesce(doubles, ints.cast(pa.float64(), safe=False)), "value_int": ints}


def _statistics(points: pa.StructArray) -> dict[str, pa.Array]:
    return {
        "count": bits_of(points.field("count")),
        **{name: points.field(name) for name in ("sum", "min", "max")},
        "exemplars": _exemplars(points.field("exemplars")),
    }


def _counts(lists: pa.ListArray) -> pa.ListArray:
    return pa.ListArray.from_arrays(lists.offsets, bits_of(lists.values))


def _buckets(side: str, points: pa.StructArray) -> dict[str, pa.Array]:
    buckets = points.field(side)
    return {
        f"{side}_offset": pc.if_else(buckets.is_valid(), buckets.field("offset"), None),
        f"{side}_bucket_counts": _counts(buckets.field("bucket_counts")),
    }


def _exemplars(lists: pa.ListArray) -> pa.ListArray:
    exemplars = lists.values
    times = exemplars.field("time_unix_nano")
    return lists_of(
        lists,
        EXEMPLAR,
        {
            "timestamp": timestamps(times),
            "time_unix_nano": bits_of(times),
            **_values(exemplars),
            "trace_id": hex_of(exemplars.field("trace_id")),
            "span_id": hex_of(exemplars.field("span_id")),
            **attributes_of(exemplars.field("filtered_attributes")).columns("filtered_attributes"),
        },
    )

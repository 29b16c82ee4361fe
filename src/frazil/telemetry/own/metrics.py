"""Families of Prometheus as export requests: counters become sums, histograms keep their buckets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import AggregationTemporality

from frazil.telemetry.own.values import Attributes, key_values, resource_of, scope_of_frazil

_CUMULATIVE = AggregationTemporality.AGGREGATION_TEMPORALITY_CUMULATIVE
_BOUND = "le"


class Sample(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def labels(self) -> Mapping[str, str]: ...
    @property
    def value(self) -> float: ...


class Family(Protocol):
    """A metric with its samples, as Prometheus' registry collects it."""

    @property
    def name(self) -> str: ...
    @property
    def documentation(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def samples(self) -> Sequence[Any]: ...


class OwnTimes(NamedTuple):
    start_ns: int
    """When the process began to count."""
    now_ns: int


def metrics_request(
    families: Iterable[Family], times: OwnTimes, resource: Attributes, version: str
) -> tuple[bytes, int]:
    """Return a request, and how many points it has."""
    request, points = ExportMetricsServiceRequest(), 0
    all_ = request.resource_metrics.add(resource=resource_of(resource))
    scope = all_.scope_metrics.add(scope=scope_of_frazil(version))
    for family in families:
        if family.samples:
            metric = scope.metrics.add(name=_name(family), description=family.documentation, unit=_unit(family.name))
            points += _fill(metric, family, times)
    return bytes(request.SerializeToString()), points


def _name(family: Family) -> str:
    """Return the name that is exposed: that of a counter ends with `_total`."""
    return f"{family.name}_total" if family.type == "counter" else family.name


def _unit(name: str) -> str:
    return "s" if name.endswith("_seconds") else "By" if name.endswith("_bytes") else ""


def _fill(metric: Any, family: Family, times: OwnTimes) -> int:
    if family.type == "histogram":
        return _histogram(metric.histogram, family.samples, times)
    if family.type == "counter":
        metric.sum.is_monotonic, metric.sum.aggregation_temporality = True, _CUMULATIVE
        points, samples = metric.sum.data_points, [one for one in family.samples if one.name.endswith("_total")]
    else:
        points, samples = metric.gauge.data_points, list(family.samples)
    for one in samples:
        points.add(
            as_double=one.value,
            attributes=key_values(one.labels),
            time_unix_nano=times.now_ns,
            start_time_unix_nano=times.start_ns if family.type == "counter" else 0,
        )
    return len(samples)


def _histogram(histogram: Any, samples: Iterable[Sample], times: OwnTimes) -> int:
    """Prometheus counts up to each bound, OpenTelemetry within each bucket."""
    histogram.aggregation_temporality = _CUMULATIVE
    found: dict[tuple[tuple[str, str], ...], dict[str, Any]] = {}
    for one in samples:
        labels = tuple(sorted((key, value) for key, value in one.labels.items() if key != _BOUND))
        series = found.setdefault(labels, {"buckets": [], "sum": 0.0})
        if _BOUND in one.labels:
            series["buckets"].append((float(one.labels[_BOUND]), one.value))
        elif one.name.endswith("_sum"):
            series["sum"] = one.value
    for labels, series in found.items():
        buckets = sorted(series["buckets"])
        counts, before = [], 0
        for _, up_to in buckets:
            counts.append(int(up_to) - before)
            before = int(up_to)
        histogram.data_points.add(
            count=before,
            sum=series["sum"],
            bucket_counts=counts,
            explicit_bounds=[bound for bound, _ in buckets if not math.isinf(bound)],
            attributes=key_values(dict(labels)),
            time_unix_nano=times.now_ns,
            start_time_unix_nano=times.start_ns,
        )
    return len(found)

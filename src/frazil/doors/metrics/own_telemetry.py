"""Counters of what the process tells of itself, as Prometheus families."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frazil.node.node import Node


class OwnTelemetryCollector(Collector):
    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        stored = CounterMetricFamily(
            "frazil_own_telemetry_stored",
            "Log records, points and spans of its own that were stored.",
            labels=["signal"],
        )
        dropped = CounterMetricFamily(
            "frazil_own_telemetry_dropped",
            "Log records, points and spans of its own that were not stored.",
            labels=["signal", "reason"],
        )
        if self._node.own_telemetry is not None:
            known, lost = self._node.own_telemetry.counts.read()
            for signal, count in sorted(known.items()):
                stored.add_metric([signal], count)
            for (signal, reason), count in sorted(lost.items()):
                dropped.add_metric([signal, reason], count)
        yield stored
        yield dropped

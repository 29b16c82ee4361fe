"""Counters of both doors, kept plain so that a request only adds numbers; and their Prometheus families."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frazil.core.errors import FrazilError
from frazil.telemetry.signals import Signal


class OtlpCounts:
    """Counted on the event loop of the doors; any thread may read."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, Signal]] = Counter()
        """Stored, by door and signal."""
        self.items: Counter[Signal] = Counter()
        self.bytes: Counter[Signal] = Counter()
        self.refused: Counter[tuple[str, str]] = Counter()
        """By door and code of the error."""
        self.rejected: Counter[Signal] = Counter()
        """Items that were left out of requests of which the rest was accepted."""
        self.forwarded = 0
        self.held_bytes: Callable[[], int] = lambda: 0

    def stored(self, door: str, signal: Signal, items: int, size_bytes: int) -> None:
        self.requests[door, signal] += 1
        self.items[signal] += items
        self.bytes[signal] += size_bytes

    def refuse(self, door: str, error: FrazilError) -> None:
        self.refused[door, error.code] += 1


class OtlpCollector(Collector):
    def __init__(self, counts: OtlpCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        requests = CounterMetricFamily(
            "frazil_otlp_requests", "Export requests that were stored.", labels=["door", "signal"]
        )
        for (door, signal), count in list(counts.requests.items()):
            requests.add_metric([door, signal.value], count)
        yield requests
        items = CounterMetricFamily("frazil_otlp_items", "Spans, log records and points in them.", labels=["signal"])
        for signal, count in list(counts.items.items()):
            items.add_metric([signal.value], count)
        yield items
        size = CounterMetricFamily("frazil_otlp_bytes", "Bytes of Protobuf in them.", labels=["signal"])
        for signal, count in list(counts.bytes.items()):
            size.add_metric([signal.value], count)
        yield size
        refused = CounterMetricFamily("frazil_otlp_refused", "Requests that were refused.", labels=["door", "code"])
        for (door, code), count in list(counts.refused.items()):
            refused.add_metric([door, code], count)
        yield refused
        rejected = CounterMetricFamily(
            "frazil_otlp_rejected_items", "Items that were left out as too large.", labels=["signal"]
        )
        for signal, count in list(counts.rejected.items()):
            rejected.add_metric([signal.value], count)
        yield rejected
        yield CounterMetricFamily(
            "frazil_otlp_forwarded", "Requests that another broker has stored.", value=counts.forwarded
        )
        yield GaugeMetricFamily(
            "frazil_otlp_held_bytes", "Bytes of requests that are not answered yet.", value=counts.held_bytes()
        )

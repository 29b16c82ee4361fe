"""Counters of the Flight server, and their Prometheus families."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class FlightCounts:
    """Calls run in many threads; each adds once per batch, not per row."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.open_streams = 0
        self.streams = 0
        self.refused = 0
        self.rows = 0

    @contextlib.contextmanager
    def a_stream(self) -> Iterator[None]:
        with self._guard:
            self.streams += 1
            self.open_streams += 1
        try:
            yield
        finally:
            with self._guard:
                self.open_streams -= 1

    def refuse(self) -> None:
        with self._guard:
            self.refused += 1

    def sent(self, rows: int) -> None:
        with self._guard:
            self.rows += rows


class FlightCollector(Collector):
    def __init__(self, counts: FlightCounts) -> None:
        self._counts = counts

    def collect(self) -> Iterator[Metric]:
        counts = self._counts
        yield GaugeMetricFamily(
            "frazil_flight_open_streams", "Streams now: ranges, and those of clients.", value=counts.open_streams
        )
        yield CounterMetricFamily("frazil_flight_streams", "Streams that were opened.", value=counts.streams)
        yield CounterMetricFamily("frazil_flight_refused", "Streams refused: too many were open.", value=counts.refused)
        yield CounterMetricFamily("frazil_flight_rows", "Rows handed out.", value=counts.rows)

"""Counters of the audit log as Prometheus families; 0 while security is off."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frazil.core.errors import FrazilError
from frazil.core.principal import ANONYMOUS
from frazil.node.node import Node


class AccessCollector(Collector):
    """Gets the gate's parts for each scrape: they open after the first request was answered."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def collect(self) -> Iterator[Metric]:
        records = lost = 0
        if self._node.settings.security.enabled:
            try:
                audit = self._node.access_parts(ANONYMOUS).audit
                records, lost = audit.records, audit.lost
            except FrazilError:  # not open yet
                pass
        yield CounterMetricFamily("frazil_audit_records", "Records of the audit log.", value=records)
        yield CounterMetricFamily("frazil_audit_lost", "Records that the audit log could not write.", value=lost)

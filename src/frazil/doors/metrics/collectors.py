"""The registry with all metrics of a Node."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from frazil.doors.metrics.access import AccessCollector
from frazil.doors.metrics.broker import BrokerCollector
from frazil.doors.metrics.log import LogCollector
from frazil.doors.metrics.tables import TablesCollector
from frazil.node.node import Node


def make_registry(node: Node, more: Iterable[Collector] = ()) -> CollectorRegistry:
    """Return a new registry. Metrics of other parts of the process are not in it."""
    registry = CollectorRegistry()
    for collector in (LogCollector(node), TablesCollector(node), *more, AccessCollector(node), BrokerCollector(node)):
        registry.register(collector)
    return registry

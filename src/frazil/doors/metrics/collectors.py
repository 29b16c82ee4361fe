"""The registry with all metrics of a Node."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from frazil.doors.metrics.access import AccessCollector
from frazil.doors.metrics.broker import BrokerCollector
from frazil.doors.metrics.cluster import ClusterCollector
from frazil.doors.metrics.log import LogCollector
from frazil.doors.metrics.own_telemetry import OwnTelemetryCollector
from frazil.doors.metrics.tables import TablesCollector
from frazil.node.node import Node


def make_registry(node: Node, more: Iterable[Collector] = ()) -> CollectorRegistry:
    """Return a new registry. Metrics of other parts of the process are not in it."""
    registry = CollectorRegistry()
    own = (AccessCollector(node), OwnTelemetryCollector(node), ClusterCollector(node), BrokerCollector(node))
    for collector in (LogCollector(node), TablesCollector(node), *more, *own):
        registry.register(collector)
    return registry

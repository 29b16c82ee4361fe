"""The brokers of the cluster as Prometheus families, as this broker knows them. A server that is alone has one."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from frazil.core.cluster import BrokerState
from frazil.doors.metrics.labels import bounded
from frazil.doors.owning import Owning
from frazil.node.node import Node


class ClusterCollector(Collector):
    """Asks for the ownership at each scrape: a Node joins its cluster when it starts."""

    def __init__(self, node: Node) -> None:
        self._owning = Owning(node)

    def collect(self) -> Iterator[Metric]:
        ownership = self._owning.ownership
        known, leader = ownership.brokers(), ownership.leader()
        brokers = GaugeMetricFamily("frazil_cluster_brokers", "Brokers, by their state.", labels=["state"])
        for state in BrokerState:
            brokers.add_metric([state], sum(one.state is state for one in known))
        yield brokers
        yield GaugeMetricFamily(
            "frazil_cluster_has_leader", "1 if a broker decides where topics go.", value=leader is not None
        )
        yield GaugeMetricFamily("frazil_cluster_leads", "1 if it is this one.", value=leader == ownership.broker_id)
        topics = GaugeMetricFamily("frazil_cluster_topics", "Topics that a broker owns.", labels=["broker"])
        load = GaugeMetricFamily("frazil_cluster_load", "The sum of their loads.", labels=["broker"])
        for names, values in bounded([((one.broker_id,), (one.topics, one.load)) for one in known]):
            for family, value in zip((topics, load), values, strict=True):
                family.add_metric(names, value)
        yield topics
        yield load
        yield GaugeMetricFamily(
            "frazil_cluster_load_variation",
            "Standard deviation of the brokers' loads as a part of their mean.",
            value=ownership.balance().variation,
        )
        yield GaugeMetricFamily(
            "frazil_cluster_topics_unserved", "Topics that no broker serves.", value=self._unserved()
        )

        counts = ownership.counts
        yield CounterMetricFamily("frazil_cluster_topics_taken", "Topics opened to be served.", value=counts.taken)
        yield CounterMetricFamily("frazil_cluster_topics_given", "Topics given to others.", value=counts.given)
        yield CounterMetricFamily("frazil_cluster_moves_failed", "Topics that stayed.", value=counts.failed)

    def _unserved(self) -> int:
        ownership = self._owning.ownership
        if not ownership.is_clustered:
            return 0
        return sum(ownership.owner_of(name) is None for name in ownership.topics())

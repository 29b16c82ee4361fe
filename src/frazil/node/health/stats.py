"""Statistics of a Node: its log, its topics, its subscriptions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from frazil.log.metrics import LogMetrics
from frazil.log.read.cache import ReplayCache
from frazil.log.stats import TopicStats, topic_stats
from frazil.log.storage import Storage
from frazil.log.write.disk_budget import DiskBudget
from frazil.node.objects.figures import ObjectStats, object_stats

if TYPE_CHECKING:
    from frazil.broker.broker import Broker
    from frazil.broker.counts import BrokerCounts
    from frazil.broker.subscriptions.figures import SubscriptionFigures


@dataclass(frozen=True, slots=True)
class BrokerStats:
    counts: BrokerCounts
    producers: int
    subscriptions: list[SubscriptionFigures]


@dataclass(frozen=True, slots=True)
class NodeStats:
    """Statistics of the log. `topics` are the open ones."""

    metrics: LogMetrics
    budget: DiskBudget
    cache: ReplayCache
    topics_total: int
    topics: list[TopicStats]
    objects: ObjectStats | None
    """None if objects are off."""


def broker_stats(broker: Broker) -> BrokerStats:
    return BrokerStats(broker.counts, broker.producer_count, broker.figures())


def node_stats(storage: Storage) -> NodeStats:
    return NodeStats(
        storage.metrics,
        storage.budget,
        storage.cache,
        len(storage.topics()),
        [topic_stats(one.log, ask_table=False) for one in storage.opened_topics()],
        object_stats(storage),
    )

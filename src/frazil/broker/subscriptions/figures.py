"""Figures of a subscription for metrics and administration. Thread-safe: it never iterates over state that the loop
changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from frazil.broker.counts import DeliveryCounts
from frazil.broker.subscriptions.live import LiveSubscription
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.topic import BrokerTopic


@dataclass(frozen=True, slots=True)
class SubscriptionFigures:
    """`lag` is from the cursor to the end of the topic, including messages in flight."""

    topic: str
    subscription: str
    lag: int
    in_flight: int
    connected: int
    blocked: bool
    counts: DeliveryCounts


def figures_of(topic: BrokerTopic, one: Subscription | LiveSubscription) -> SubscriptionFigures:
    connected = sum(consumer.stream is not None for consumer in list(one.consumers.values()))
    if isinstance(one, LiveSubscription):  # messages are never sent without a consumer: there is no lag
        return SubscriptionFigures(topic.label, one.name, 0, 0, connected, False, one.counts)
    lag = max(0, topic.end - one.cursor.end)
    is_blocked = one.blocked_by is not None
    return SubscriptionFigures(topic.label, one.name, lag, one.unacked, connected, is_blocked, one.counts)


def all_figures(topics: Iterable[BrokerTopic]) -> list[SubscriptionFigures]:
    """Return the figures of each subscription of these topics. Thread-safe."""
    return [figures_of(topic, one) for topic in topics for one in list(topic.subscriptions.values())]

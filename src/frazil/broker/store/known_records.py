"""All records of a topic or a subscription, as the broker knows them: to be stored again after a failed deletion, whose
effect is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from frazil.broker.store.progress import stored_form
from frazil.broker.store.records import (
    PRODUCERS,
    SUBSCRIPTIONS,
    TOPICS,
    Stored,
    progress_key,
    stored_consumer,
    topic_key,
)
from frazil.broker.subscriptions.live import LiveSubscription
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.topic import BrokerTopic


def records_of(topic: BrokerTopic, subscription: Subscription | LiveSubscription) -> dict[str, Stored]:
    """Return the records of a subscription: itself, its consumers and its progress."""
    itself: dict[str, Any] = {"kind": str(subscription.kind)}
    if isinstance(subscription, Subscription) and (policy := subscription.own_policy.stored()):
        itself["policy"] = policy
    records: dict[str, Stored] = {topic_key(SUBSCRIPTIONS, topic.name, subscription.name): itself}
    for consumer in subscription.consumers.values():
        records.update(stored_consumer(topic.name, subscription.name, consumer))
    if isinstance(subscription, Subscription):
        key = progress_key(subscription.name, topic.name)
        records[key] = stored_form(subscription.progress(), subscription.place)
    return records


def records_of_topic(topic: BrokerTopic) -> dict[str, Stored]:
    """Return the records of a topic: itself, its producers and its subscriptions."""
    records: dict[str, Stored] = {
        topic_key(PRODUCERS, topic.name, *one.names): {"id": one.id} for one in topic.producers.values()
    }
    for subscription in topic.subscriptions.values():
        records.update(records_of(topic, subscription))
    records[topic_key(TOPICS, topic.name)] = {"reliable": topic.reliable, "log_id": topic.log_id}
    return records


def records_of_all(topics: Iterable[BrokerTopic]) -> dict[str, Stored]:
    return {key: value for topic in topics for key, value in records_of_topic(topic).items()}

"""Messages that were delivered too often, in a topic of their own, with what is known of them."""

from __future__ import annotations

from frazil.broker.subscription import Delivery
from frazil.broker.topic import Outgoing
from frazil.core.broker_settings import Poison
from frazil.core.names import TopicName
from frazil.core.rows import Origin

SUFFIX = "-dead-letter"
TOPIC, SUBSCRIPTION, OFFSET = "x-original-topic", "x-original-subscription", "x-original-topic-offset"
POLICY, ATTEMPTS, REASON = "x-poison-policy", "x-delivery-attempt", "x-failure-reason"
OURS = (TOPIC, SUBSCRIPTION, OFFSET, POLICY, ATTEMPTS, REASON)
REPLAYED = "x-replayed-dead-letter"
"""On a message that was published again: the offset that it has among the dead letters."""


def dead_letter_topic(topic: TopicName) -> TopicName:
    """Of all partitions of a topic the same."""
    base, _ = topic.partition_of()
    return TopicName(base.namespace, base.topic + SUFFIX)


def dead_letter(topic: TopicName, subscription: str, delivery: Delivery, reason: str) -> Outgoing:
    message = delivery.entry.message
    attributes = {
        **message.attributes,
        TOPIC: str(topic),
        SUBSCRIPTION: subscription,
        OFFSET: str(message.offset),
        POLICY: str(Poison.DEAD_LETTER),
        ATTEMPTS: str(delivery.redeliveries),
        REASON: reason,
    }
    key = None if message.key is None else message.key.decode(errors="replace")
    publish_time_us = int(message.publish_time.timestamp() * 1_000_000)
    origin = Origin(message.producer, publish_time_us, message.schema_id, message.schema_version)
    return Outgoing(message.payload, key, attributes, origin)

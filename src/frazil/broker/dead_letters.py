"""Messages that were delivered too often, in a topic of their own, with what is known of them."""

from __future__ import annotations

from frazil.broker.subscription import Delivery
from frazil.broker.topic import Outgoing
from frazil.core.broker_settings import Poison
from frazil.core.names import TopicName
from frazil.core.rows import Origin

SUFFIX = "-dead-letter"


def dead_letter_topic(topic: TopicName) -> TopicName:
    """Of all partitions of a topic the same."""
    base, _ = topic.partition_of()
    return TopicName(base.namespace, base.topic + SUFFIX)


def dead_letter(topic: TopicName, subscription: str, delivery: Delivery, reason: str) -> Outgoing:
    message = delivery.entry.message
    attributes = {
        **message.attributes,
        "x-original-topic": str(topic),
        "x-original-subscription": subscription,
        "x-original-topic-offset": str(message.offset),
        "x-poison-policy": str(Poison.DEAD_LETTER),
        "x-delivery-attempt": str(delivery.redeliveries),
        "x-failure-reason": reason,
    }
    key = None if message.key is None else message.key.decode(errors="replace")
    publish_time_us = int(message.publish_time.timestamp() * 1_000_000)
    origin = Origin(message.producer, publish_time_us, message.schema_id, message.schema_version)
    return Outgoing(message.payload, key, attributes, origin)

"""Messages that were delivered too often, in a topic of their own, with what is known of them."""

from __future__ import annotations

import zlib

from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.entry import Entry
from frazil.broker.topic import BrokerTopic, Outgoing
from frazil.core.broker_settings import Poison
from frazil.core.names import PART_LENGTH_MAX, TopicName
from frazil.core.rows import Origin

SUFFIX = "-dead-letter"
REASON_LENGTH_MAX = 1_000
HEADERS_BYTES_MAX = 16 * 1024
"""A dead letter may be larger than its message by so much: names of at most 255 characters, and a reason."""
TOPIC, SUBSCRIPTION, OFFSET = "x-original-topic", "x-original-subscription", "x-original-topic-offset"
PRODUCER, BROKER = "x-original-producer-id", "x-original-broker-addr"
POLICY, ATTEMPTS, REASON = "x-poison-policy", "x-delivery-attempt", "x-failure-reason"
OURS = (TOPIC, SUBSCRIPTION, OFFSET, PRODUCER, BROKER, POLICY, ATTEMPTS, REASON)
REPLAYED = "x-replayed-dead-letter"
"""On a message that was published again: the offset that it has among the dead letters."""


def dead_letter_topic(topic: TopicName) -> TopicName:
    """Of all partitions of a topic the same."""
    base, _ = topic.partition_of()
    name = base.topic + SUFFIX
    if len(name) > PART_LENGTH_MAX:  # a digest keeps two long names apart that begin alike
        digest = f"-{zlib.crc32(base.topic.encode()):08x}"
        name = base.topic[: PART_LENGTH_MAX - len(digest) - len(SUFFIX)] + digest + SUFFIX
    return TopicName(base.namespace, name)


def letters_of(topic: TopicName, policy: DeliveryPolicy) -> TopicName:
    """Where a subscription of this policy has its dead letters."""
    return dead_letter_topic(topic) if policy.dead_letter_topic is None else TopicName.parse(policy.dead_letter_topic)


def dead_letter(
    topic: BrokerTopic, subscription: str, entry: Entry, attempts: int, reason: str, broker: str
) -> Outgoing:
    """`broker` is the address by which clients reach it. A message of no Danube producer has the producer id 0."""
    message = entry.message
    producer = topic.producers.get(message.producer or "")
    attributes = {
        **message.attributes,
        TOPIC: topic.label,
        SUBSCRIPTION: subscription,
        OFFSET: str(message.offset),
        PRODUCER: "0" if producer is None else str(producer.id),
        BROKER: broker,
        POLICY: str(Poison.DEAD_LETTER),
        ATTEMPTS: str(attempts),
        REASON: reason[:REASON_LENGTH_MAX],
    }
    key = None if message.key is None else message.key.decode(errors="replace")
    publish_time_us = int(message.publish_time.timestamp() * 1_000_000)
    origin = Origin(message.producer, publish_time_us, message.schema_id, message.schema_version)
    return Outgoing(message.payload, key, attributes, origin)

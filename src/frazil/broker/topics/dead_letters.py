"""Dead letters: messages that were delivered too often, in their own topic, with the reason."""

from __future__ import annotations

import zlib

from frazil.broker.clients import producer_of
from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.topics.entry import Entry
from frazil.broker.topics.topic import BrokerTopic, OutgoingMessage
from frazil.core.names import PART_LENGTH_MAX, TopicName
from frazil.core.rows import Origin
from frazil.core.settings.broker import Poison

SUFFIX = "-dead-letter"
REASON_LENGTH_MAX = 1_000
HEADERS_BYTES_MAX = 16 * 1024
"""A dead letter may be larger than its message by this: names of at most 255 characters, and a reason."""
TOPIC, SUBSCRIPTION, OFFSET = "x-original-topic", "x-original-subscription", "x-original-topic-offset"
PRODUCER, BROKER = "x-original-producer-id", "x-original-broker-addr"
POLICY, ATTEMPTS, REASON = "x-poison-policy", "x-delivery-attempt", "x-failure-reason"
OURS = (TOPIC, SUBSCRIPTION, OFFSET, PRODUCER, BROKER, POLICY, ATTEMPTS, REASON)
REPLAYED = "x-replayed-dead-letter"
"""On a replayed message: the offset of its dead letter."""


def dead_letter_topic(topic: TopicName) -> TopicName:
    """The same for all partitions of a topic."""
    base, _ = topic.partition_of()
    name = base.topic + SUFFIX
    if len(name) > PART_LENGTH_MAX:  # a digest distinguishes long names with the same beginning
        digest = f"-{zlib.crc32(base.topic.encode()):08x}"
        name = base.topic[: PART_LENGTH_MAX - len(digest) - len(SUFFIX)] + digest + SUFFIX
    return TopicName(base.namespace, name)


def letters_of(topic: TopicName, policy: DeliveryPolicy | OwnPolicy) -> TopicName:
    """Return the dead-letter topic of a subscription with this policy."""
    return dead_letter_topic(topic) if policy.dead_letter_topic is None else TopicName.parse(policy.dead_letter_topic)


def dead_letter(
    topic: BrokerTopic, subscription: str, entry: Entry, attempts: int, reason: str, broker: str
) -> OutgoingMessage:
    """`broker` is the address at which clients reach it. A message without a Danube producer has the producer id 0."""
    message = entry.message
    producer = producer_of(topic, message.producer or "", None)
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
    return OutgoingMessage(message.payload, key, attributes, origin)

"""Stored policies of subscriptions, and the checks before one is set."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.known import KnownTopics
from frazil.broker.topics.topic import BrokerTopic
from frazil.core.errors import InvalidInput, SubscriptionNotFound, TopicDiffers
from frazil.core.names import TopicName
from frazil.core.partitions import check_form, partitions_of
from frazil.log.storage import Storage

_log = logging.getLogger("frazil.broker")


def own_policy(topic: TopicName, subscription: str, stored: Mapping[str, Any] | None) -> OwnPolicy:
    """Restore a policy. An invalid record loses the policy, not the messages."""
    try:
        return OwnPolicy.restored(stored)
    except InvalidInput as error:
        _log.error("%s: the policy of subscription %s is not used: %s; set it again", topic, subscription, error)
        return OwnPolicy()


def with_policy(topic: BrokerTopic, subscription: str) -> Subscription:
    """Return a subscription that can have a policy: one of a topic that stores its messages."""
    found = topic.subscriptions.get(subscription)
    if found is None:
        raise SubscriptionNotFound(str(topic.name), subscription)
    if not isinstance(found, Subscription):
        raise TopicDiffers(str(topic.name), "it is non-reliable: a message is delivered once, and needs no policy")
    return found


async def check_takes_letters(storage: Storage, letters: TopicName, known: KnownTopics) -> None:
    """Check that dead letters can be published there, once the topic exists."""
    if letters in known and not known[letters].reliable:
        raise TopicDiffers(str(letters), "dead_letter_topic must be a reliable topic")
    await asyncio.to_thread(_check_stored, storage, letters, frozenset(known.family(letters)))


def _check_stored(storage: Storage, letters: TopicName, known: AbstractSet[TopicName]) -> None:
    stored = storage.family(letters)
    there = stored | known
    check_form(letters, there, has_partitions=letters not in there and bool(partitions_of(letters, there)))
    if letters in stored and storage.record(str(letters)).schema is not None:
        raise TopicDiffers(str(letters), "dead_letter_topic must be a topic of messages, and it has columns")

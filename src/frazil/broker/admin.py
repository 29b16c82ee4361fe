"""The administrative view of the broker, and resets of subscriptions. Runs on the broker's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from typing import Any

from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import OwnPolicy, shown
from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.policies import PolicyChange
from frazil.broker.store.policies import with_policy
from frazil.broker.subscriptions.live import LiveSubscription
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.dead_letters import letters_of
from frazil.broker.topics.topic import BrokerTopic
from frazil.core.errors import SubscriptionNotFound, TopicDiffers, TopicExists, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.partitions import partitions_of, topic_not_found
from frazil.log.read.positions import Start, resolve_start


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """`cursor`: everything below is acknowledged; `durable`: the cursor after a crash. Null if nothing is stored.

    `snapshot_id` and `file`: the table position of the last row found before the cursor.
    """

    topic: str
    subscription: str
    type: str
    reliable: bool
    cursor: int | None
    durable: int | None
    end: int | None
    lag: int | None
    in_flight: int
    resting: int
    blocked_by: int | None
    snapshot_id: int | None
    file: str | None
    dropped: int
    consumers: int
    connected: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """`id` is the id its clients use, in decimal: it may exceed JavaScript's integers."""

    topic: str
    subscription: str
    consumer: str
    id: str
    connected: bool
    in_flight: int
    key_filters: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class ProducerStatus:
    topic: str
    producer: str
    id: str

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """`policy` is what was set for the subscription, `effective` what applies."""

    topic: str
    subscription: str
    type: Kind
    policy: OwnPolicy
    effective: DeliveryPolicy
    dead_letter_topic: str
    """The topic for dead letters, whether or not there are any."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "subscription": self.subscription,
            "policy": asdict(self.policy),
            "effective": {**shown(self.effective), "dead_letter_topic": self.dead_letter_topic},
        }


LettersAllowed = Callable[[TopicName], AbstractAsyncContextManager[bool]]
"""Checks that the caller may have dead letters published to a topic. Yields whether the block is to create it."""


class BrokerAdmin:
    def __init__(self, broker: Broker, letters: LettersAllowed | None = None) -> None:
        """Without `letters` every caller may set every policy, as without security."""
        self._broker = broker
        self._letters = letters

    def topic(self, name: TopicName) -> BrokerTopic:
        found = self._broker.topics.get(name)
        if found is None:
            if partitions_of(name, family := self._broker.topics.family(name)):
                raise topic_not_found(name, family)
            raise TopicNotFound(str(name), "no producer has ever used it, or it was deleted")
        return found

    def producers(self, name: TopicName, only: Iterable[str] | None = None) -> list[ProducerStatus]:
        """Return all, or those with these names."""
        topic = self.topic(name)
        names = sorted(topic.producers if only is None else only)
        return [ProducerStatus(topic.label, one, str(topic.producers[one].id)) for one in names]

    def subscriptions(self, name: TopicName, only: Iterable[str] | None = None) -> list[SubscriptionStatus]:
        """Return all, or those with these names: a page costs only what it shows."""
        topic = self.topic(name)
        return [
            _status(topic, topic.subscriptions[one]) for one in sorted(topic.subscriptions if only is None else only)
        ]

    def subscription(self, name: TopicName, subscription: str) -> SubscriptionStatus:
        topic = self.topic(name)
        return _status(topic, _known(topic, subscription))

    def consumers(self, name: TopicName, subscription: str) -> list[ConsumerStatus]:
        topic = self.topic(name)
        return sorted(_consumers(topic, _known(topic, subscription)), key=lambda one: one.consumer)

    def policy(self, name: TopicName, subscription: str) -> PolicyStatus:
        return _policy(self.topic(name), with_policy(self.topic(name), subscription))

    async def set_policy(
        self, name: TopicName, subscription: str, change: PolicyChange, *, keeps_letters: bool = False
    ) -> PolicyStatus:
        """`change` gets the previous policy. Durable when it returns, and effective from then on.

        `keeps_letters`: the change has nothing to do with dead letters, and needs no right for them.
        """
        topic, policies = self.topic(name), self._broker.policies
        self._broker.check_open()
        own = policies.checked(topic, subscription, change)
        if self._letters is None or keeps_letters or not own.sends_letters:
            return _policy(topic, await policies.set(topic, subscription, change))
        letters = letters_of(name, own)
        try:
            async with self._letters(letters) as is_new:
                found = await policies.set(topic, subscription, change, letters if is_new else None)
        except TopicExists:  # created by another call meanwhile; or it takes no letters, and that is found again
            found = await policies.set(topic, subscription, change)
        return _policy(topic, found)

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        await self._broker.delete_subscription(self.topic(name), subscription)

    async def reset(self, name: TopicName, subscription: str, start: Start) -> SubscriptionStatus:
        """Durable when it returns; see `Subscription.move_to`. It may query the table."""
        topic = self.topic(name)
        if topic.feed is None:
            _known(topic, subscription)
            raise TopicDiffers(str(name), "it is non-reliable, and keeps nothing that one could go back to")
        _known(topic, subscription)
        offset = await asyncio.to_thread(resolve_start, topic.feed.topic.log, start)
        found = _known(self.topic(name), subscription)  # it may have been deleted while the offset was looked up
        assert isinstance(found, Subscription)
        await self._broker.move_subscription(topic, found, offset)
        return _status(topic, found)


def _known(topic: BrokerTopic, subscription: str) -> Subscription | LiveSubscription:
    found = topic.subscriptions.get(subscription)
    if found is None:
        raise SubscriptionNotFound(str(topic.name), subscription)
    return found


def _status(topic: BrokerTopic, one: Subscription | LiveSubscription) -> SubscriptionStatus:
    kept = one if isinstance(one, Subscription) else None
    return SubscriptionStatus(
        topic=topic.label,
        subscription=one.name,
        type=str(one.kind),
        reliable=kept is not None,
        cursor=None if kept is None else kept.cursor.end,
        durable=None if kept is None else kept.durable_end,
        end=None if kept is None else kept.end,
        lag=None if kept is None else kept.lag,
        in_flight=0 if kept is None else kept.in_flight,
        resting=0 if kept is None else kept.resting,
        blocked_by=None if kept is None else kept.blocked_by,
        snapshot_id=None if kept is None or kept.place is None else kept.place.snapshot_id,
        file=None if kept is None or kept.place is None else kept.place.file,
        dropped=one.counts.dropped,
        consumers=len(one.consumers),
        connected=sum(consumer.stream is not None for consumer in one.consumers.values()),
    )


def _policy(topic: BrokerTopic, one: Subscription) -> PolicyStatus:
    letters = str(letters_of(topic.name, one.policy))
    return PolicyStatus(topic.label, one.name, one.kind, one.own_policy, one.policy, letters)


def _consumers(topic: BrokerTopic, subscription: Subscription | LiveSubscription) -> Iterator[ConsumerStatus]:
    for one in subscription.consumers.values():
        yield ConsumerStatus(
            topic.label,
            subscription.name,
            one.name,
            str(one.id),
            one.stream is not None,
            subscription.in_flight_of(one.name),
            one.key_filters,
        )

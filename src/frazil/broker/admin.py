"""What administrators see of the broker, and where they may set a subscription. On its event loop, as all of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from frazil.broker.broker import Broker
from frazil.broker.dead_letters import letters_of
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import OwnPolicy, shown
from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.live import LiveSubscription
from frazil.broker.policies import with_policy
from frazil.broker.subscription import Subscription
from frazil.broker.topic import BrokerTopic
from frazil.core.errors import SubscriptionNotFound, TopicDiffers, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.partitions import partitions_of, topic_not_found
from frazil.log.positions import Start, resolve_start


@dataclass(frozen=True, slots=True)
class SubscriptionStatus:
    """`cursor`: all below is acknowledged; `durable`: as far as a crash remembers. Null where nothing is kept.

    `snapshot_id` and `file`: where the table has the last row before the cursor that was looked for.
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
    """`id` is what its clients call it by, in decimal: it may be more than JavaScript can count."""

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
    """`policy` is what was set for the subscription, `effective` what holds."""

    topic: str
    subscription: str
    type: Kind
    policy: OwnPolicy
    effective: DeliveryPolicy
    dead_letter_topic: str
    """Where dead letters go, were there any."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "subscription": self.subscription,
            "policy": asdict(self.policy),
            "effective": {**shown(self.effective), "dead_letter_topic": self.dead_letter_topic},
        }


class BrokerAdmin:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def topic(self, name: TopicName) -> BrokerTopic:
        found = self._broker.topics.get(name)
        if found is None:
            if partitions_of(name, family := self._broker.topics.family(name)):
                raise topic_not_found(name, family)
            raise TopicNotFound(str(name), "no producer has ever used it, or it was deleted")
        return found

    def producers(self, name: TopicName, only: Iterable[str] | None = None) -> list[ProducerStatus]:
        """All, or those of these names."""
        topic = self.topic(name)
        names = sorted(topic.producers if only is None else only)
        return [ProducerStatus(topic.label, one, str(topic.producers[one].id)) for one in names]

    def subscriptions(self, name: TopicName, only: Iterable[str] | None = None) -> list[SubscriptionStatus]:
        """All, or those of these names: a page costs no more than it shows."""
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
        self, name: TopicName, subscription: str, change: Callable[[OwnPolicy], OwnPolicy]
    ) -> PolicyStatus:
        """`change` gets what was set before. Durable when it returns, and in force from then on."""
        topic = self.topic(name)
        return _policy(topic, await self._broker.set_policy(topic, subscription, change))

    async def delete_subscription(self, name: TopicName, subscription: str) -> None:
        await self._broker.delete_subscription(self.topic(name), subscription)

    async def reset(self, name: TopicName, subscription: str, start: Start) -> SubscriptionStatus:
        """Durable when it returns; see `Subscription.move_to`. What the table has may be asked for, too."""
        topic = self.topic(name)
        if topic.feed is None:
            _known(topic, subscription)
            raise TopicDiffers(str(name), "it is non-reliable, and keeps nothing that one could go back to")
        _known(topic, subscription)
        offset = await asyncio.to_thread(resolve_start, topic.feed.topic.log, start)
        found = _known(self.topic(name), subscription)  # it may have gone while the offset was looked up
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

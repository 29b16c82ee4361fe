"""Producers and consumers, and whose they are. With security on, `owner` is the principal that has created one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import quote

from frazil.broker.subscriptions.consumer import Consumer
from frazil.broker.subscriptions.live import LiveSubscription
from frazil.broker.subscriptions.subscription import Subscription
from frazil.core.errors import SubscriptionTaken

if TYPE_CHECKING:
    from frazil.broker.topics.topic import BrokerTopic


@dataclass(slots=True)
class Producer:
    """Known by name permanently."""

    id: int
    name: str
    topic: BrokerTopic
    owner: str | None = None

    @property
    def key(self) -> str:
        """Its key in `BrokerTopic.producers`."""
        return producer_key(self.name, self.owner)

    @property
    def names(self) -> tuple[str, ...]:
        """Its names in the key of its record."""
        return producer_names(self.name, self.owner)


def producer_key(name: str, owner: str | None) -> str:
    return name if owner is None else f"{name}@{quote(owner, safe=':')}"


def producer_names(name: str, owner: str | None) -> tuple[str, ...]:
    return (name,) if owner is None else (name, owner)


def producer_of(topic: BrokerTopic | None, name: str, owner: str | None) -> Producer | None:
    """Return the caller's producer of that name, or one without an owner. Without security, that of any owner."""
    if topic is None:
        return None
    for key in (producer_key(name, owner), name):
        found = topic.producers.get(key)
        if found is not None and found.name == name and found.owner in (None, owner):
            return found
    return next((one for one in topic.producers.values() if one.name == name), None) if owner is None else None


@dataclass(slots=True)
class ConsumerPlace:
    """The subscription of a consumer."""

    topic: BrokerTopic
    subscription: Subscription | LiveSubscription
    consumer: Consumer


def is_of(owner: str | None, caller: str | None) -> bool:
    """Whether a producer or consumer may be used by a caller; None is a caller without security."""
    return owner is None or caller is None or owner == caller


def _never(_: str) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Caller:
    """Who subscribes; `name` is None without security.

    A consumer of another principal is refused, unless that principal `is_gone`: it may no longer consume. Otherwise the
    position of an exclusive subscription would be lost with its first consumer's key.
    """

    name: str | None = None
    is_gone: Callable[[str], bool] = _never

    def changes(self, consumer: Consumer, key_filters: Sequence[str]) -> bool:
        """Whether to subscribe changes what is stored of the consumer."""
        return consumer.key_filters != tuple(key_filters) or not is_of(consumer.owner, self.name)

    def owner_of(self, consumer: Consumer, topic: str, subscription: str) -> str | None:
        """Return the owner from now on, or raise `SubscriptionTaken`."""
        owner = consumer.owner
        if owner is None or is_of(owner, self.name):
            return owner
        if consumer.stream is not None or not self.is_gone(owner):
            raise SubscriptionTaken(topic, subscription, consumer.name, is_name=True)
        return self.name


OPEN = Caller()

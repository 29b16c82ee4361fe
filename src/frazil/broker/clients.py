"""Producers and consumers by their ids, as the broker finds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from frazil.broker.consumer import Consumer
from frazil.broker.live import LiveSubscription
from frazil.broker.subscription import Subscription

if TYPE_CHECKING:
    from frazil.broker.topic import BrokerTopic


@dataclass(slots=True)
class Producer:
    """Known by name for good."""

    id: int
    name: str
    topic: BrokerTopic


@dataclass(slots=True)
class ConsumerPlace:
    """Where a consumer belongs."""

    topic: BrokerTopic
    subscription: Subscription | LiveSubscription
    consumer: Consumer

"""Types of the broker that doors translate: doors import only the Node, not the layers below."""

from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.counts import BrokerCounts
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import ACK_TIMEOUT_MS, BYTES, DELAY_MS, MESSAGES, REDELIVERIES, OwnPolicy
from frazil.broker.subscriptions.consumer import Consumer, Stream
from frazil.broker.subscriptions.figures import SubscriptionFigures
from frazil.broker.subscriptions.live import LiveSubscription
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.entry import Entry
from frazil.broker.topics.topic import BrokerTopic
from frazil.broker.topics.topic import OutgoingMessage as BrokerMessage

__all__ = [
    "ACK_TIMEOUT_MS",
    "BYTES",
    "DELAY_MS",
    "MESSAGES",
    "REDELIVERIES",
    "Broker",
    "BrokerAdmin",
    "BrokerCounts",
    "BrokerMessage",
    "BrokerTopic",
    "Consumer",
    "Entry",
    "Kind",
    "LiveSubscription",
    "OwnPolicy",
    "Stream",
    "Subscription",
    "SubscriptionFigures",
]

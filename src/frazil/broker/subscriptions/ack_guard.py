"""The retention guard of topics that are kept until all subscriptions have acknowledged."""

from __future__ import annotations

from frazil.broker.broker import Broker
from frazil.log.retention.guards import SUBSCRIPTIONS
from frazil.log.topic_log import TopicLog


class AckGuard:
    """Returns what every subscription of a running broker has acknowledged, for topics that are kept until then.

    The stored cursor may be ahead of one that was just reset: both are checked.
    """

    name = SUBSCRIPTIONS
    holds_rows = False

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def concerns(self, log: TopicLog) -> bool:
        return log.retention.until_acked

    def floor(self, log: TopicLog) -> int:
        return self._broker.acked(log.name)

    def close(self) -> None:
        pass

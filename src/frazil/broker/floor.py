"""How far segments may go where a topic is kept until everyone has acknowledged."""

from __future__ import annotations

from frazil.broker.broker import Broker
from frazil.log.guards import SUBSCRIPTIONS
from frazil.log.topic_log import TopicLog


class AckGuard:
    """What every subscription of a running broker has acknowledged, of topics that are kept until then.

    What is stored may be ahead of a cursor that was just set back: both are asked.
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

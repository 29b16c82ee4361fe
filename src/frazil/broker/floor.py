"""How far segments may go where a topic is kept until everyone has acknowledged."""

from __future__ import annotations

from collections.abc import Callable

from frazil.broker.broker import Broker
from frazil.log.topic_log import TopicLog


class AckFloor:
    """The lower of what the table has and what every subscription has acknowledged."""

    def __init__(self, table: Callable[[TopicLog], int | None], broker: Broker) -> None:
        self._table = table
        self._broker = broker

    def __call__(self, log: TopicLog) -> int | None:
        floor = self._table(log)
        if not log.retention.until_acked:
            return floor
        acked = self._broker.acked(log.name)
        return acked if floor is None else min(acked, floor)

"""Consumers whose subscription was deleted, so that their clients end too.

A stock client reopens a failed stream at once and endlessly, until a health check reports its consumer as closed. Then
it re-subscribes automatically, which would recreate what was deleted. So such a stream is held for a while before it is
refused, and the first subscribe after the health check is refused with a status that ends the client. An explicit
re-subscribe is allowed.
"""

from __future__ import annotations

import asyncio
from typing import NamedTuple

HOLD_SECONDS = 6.0
"""Longer than a stock client waits between two health checks."""
KEPT_MAX = 10_000


class Subscriber(NamedTuple):
    """The identity of a subscriber: a connection, and the names it gives."""

    peer: str
    topic: str
    subscription: str
    consumer: str


class EndedConsumers:
    """Used on one event loop. The oldest entries are forgotten."""

    def __init__(self) -> None:
        self._ended: dict[int, Subscriber] = {}
        self._closed: set[Subscriber] = set()
        self._stopping = asyncio.Event()

    def __contains__(self, number: int) -> bool:
        return number in self._ended

    def add(self, number: int, who: Subscriber) -> None:
        self._ended[number] = who
        if len(self._ended) > KEPT_MAX:
            self._closed.discard(self._ended.pop(next(iter(self._ended))))

    def tell_closed(self, number: int) -> None:
        """The client got the health status: its next subscribe is automatic."""
        if number in self._ended:
            self._closed.add(self._ended[number])

    def is_its_own_doing(self, who: Subscriber) -> bool:
        """Whether this subscribe is automatic; True only once."""
        if who not in self._closed:
            return False
        self._closed.discard(who)
        self._ended = {number: one for number, one in self._ended.items() if one != who}
        return True

    async def hold(self, seconds: float = HOLD_SECONDS) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def stop(self) -> None:
        self._stopping.set()

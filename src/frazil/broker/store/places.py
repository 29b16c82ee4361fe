"""Table positions of subscriptions' cursors, determined periodically and stored with their progress.

A subscription that resumes in the table searches files from there on instead of the whole table. Nothing else depends
on it: a cursor resumes by its offset. It also shows other tools the snapshot and file of a subscription. Searching a
table costs far more than an acknowledgement, so moved cursors are searched every few seconds, and the scans take a
small share of the time for any number of topics. Subscriptions whose cursors do not move cost nothing once their
position is known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.topic import BrokerTopic
from frazil.core.errors import FrazilError
from frazil.core.offsets import Place

INTERVAL_SECONDS = 5.0
REST = 20
"""Back off for 20 times the duration of the last scan."""

_log = logging.getLogger("frazil.broker")


class PlaceKeeper:
    def __init__(self, placed: Callable[[BrokerTopic, Subscription], None]) -> None:
        self._placed = placed
        self._moved: dict[BrokerTopic, set[Subscription]] = {}
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="places")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def moved(self, topic: BrokerTopic, subscription: Subscription) -> None:
        """The cursor has moved. A topic without a table has no positions."""
        if topic.has_history and subscription.cursor.end not in (0, subscription.placed_end):
            self._moved.setdefault(topic, set()).add(subscription)

    def forget(self, topic: BrokerTopic, subscription: object) -> None:
        """Forget a deleted subscription. One of a topic without a log was never registered."""
        waiting: set[Any] = self._moved.get(topic, set())
        waiting.discard(subscription)
        if not waiting:
            self._moved.pop(topic, None)

    async def look(self) -> None:
        """Scan all moved cursors once. Rows that the table does not have yet are searched again."""
        for topic in list(self._moved):
            moved = {one: one.cursor.end for one in self._moved.get(topic, ())}
            if not moved:
                continue
            offsets = {end - 1 for end in moved.values()}
            try:
                found = await asyncio.to_thread(_places, topic, offsets)
            except FrazilError as error:
                _log.info("%s: where its table has what is acknowledged is not known: %s", topic.name, error)
                continue
            for subscription, end in moved.items():
                if end - 1 in found and not subscription.deleted and subscription.cursor.end >= end:
                    subscription.place, subscription.placed_end = found[end - 1], end
                    self._placed(topic, subscription)
                if subscription.cursor.end in (0, subscription.placed_end):
                    self.forget(topic, subscription)

    async def _work(self) -> None:
        while True:
            started = time.monotonic()
            await self.look()
            await asyncio.sleep(max(INTERVAL_SECONDS, REST * (time.monotonic() - started)))


def _places(topic: BrokerTopic, offsets: set[int]) -> dict[int, Place]:
    assert topic.feed is not None
    history = topic.feed.topic.log.history
    return {} if history is None else history.places(offsets)

"""Where the tables have what subscriptions have acknowledged, found now and then and stored with their progress.

A subscription that resumes in the table looks for files from there on, and not through the whole table. Nothing else
depends on it: a cursor goes on by its offset. It also shows other tools which snapshot and which file a subscription is
at. A look at a table costs far more than an acknowledgement, so cursors that move on are looked at every few seconds,
and the looks take a small part of the time however many topics there are. Subscriptions whose cursors stand still cost
nothing once their place is known.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from frazil.broker.subscription import Subscription
from frazil.broker.topic import BrokerTopic
from frazil.core.errors import FrazilError
from frazil.core.offsets import Place

INTERVAL_SECONDS = 5.0
REST = 20
"""For so many times as long as the last looks took, no others follow."""

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
        """Its cursor may have another place now. A topic without a table has none."""
        if topic.has_history and subscription.cursor.end not in (0, subscription.placed_end):
            self._moved.setdefault(topic, set()).add(subscription)

    def forget(self, topic: BrokerTopic, subscription: object) -> None:
        """Of a subscription that is no more. One of a topic without a log was never there."""
        waiting: set[Any] = self._moved.get(topic, set())
        waiting.discard(subscription)
        if not waiting:
            self._moved.pop(topic, None)

    async def look(self) -> None:
        """Once over all that moved. What the table has not got yet is looked for again."""
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

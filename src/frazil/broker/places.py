"""Where the tables have what subscriptions have acknowledged, found now and then and stored with their progress.

A subscription that resumes in the table looks for files from there on, and not through the whole table. Nothing else
depends on it: a cursor goes on by its offset. It also shows other tools which snapshot and which file a subscription is
at. A look at a table costs far more than an acknowledgement, so cursors that move on are looked at every few seconds,
and the looks take a small part of the time however many topics there are.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator

from frazil.broker.subscription import Subscription
from frazil.broker.topic import BrokerTopic
from frazil.core.errors import FrazilError
from frazil.core.offsets import Place

INTERVAL_SECONDS = 5.0
REST = 20
"""For so many times as long as the last looks took, no others follow."""

_log = logging.getLogger("frazil.broker")


class PlaceKeeper:
    def __init__(
        self, topics: Callable[[], Iterable[BrokerTopic]], placed: Callable[[BrokerTopic, Subscription], None]
    ) -> None:
        self._topics = topics
        self._placed = placed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name="places")

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def look(self) -> None:
        """Once over all topics."""
        for topic in list(self._topics()):
            moved = {one: one.cursor.end for one in _moved(topic)}
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

    async def _work(self) -> None:
        while True:
            started = time.monotonic()
            await self.look()
            await asyncio.sleep(max(INTERVAL_SECONDS, REST * (time.monotonic() - started)))


def _moved(topic: BrokerTopic) -> Iterator[Subscription]:
    """Those whose place is not known, or of a cursor that they had before."""
    for subscription in topic.subscriptions.values():
        if isinstance(subscription, Subscription) and subscription.cursor.end not in (0, subscription.placed_end):
            yield subscription


def _places(topic: BrokerTopic, offsets: set[int]) -> dict[int, Place]:
    assert topic.feed is not None
    history = topic.feed.topic.log.history
    return {} if history is None else history.places(offsets)

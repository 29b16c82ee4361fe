"""Load the broker's stored state: all of it at startup, in one read; or that of one topic.

Each step visits each record once, so the time grows linearly with the number of subscriptions.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from frazil.broker.delivery.progress import Progress
from frazil.broker.store.progress import restored
from frazil.broker.store.records import (
    CONSUMERS,
    PRODUCERS,
    PROGRESS,
    SUBSCRIPTIONS,
    Records,
    progress_key,
    topic_key,
)
from frazil.broker.subscriptions.consumer import Consumer
from frazil.core.names import TopicName

_log = logging.getLogger("frazil.broker")


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    topic: TopicName
    name: str
    value: dict[str, Any]
    progress: dict[str, Any] | None
    """None for a topic that stores nothing."""
    consumers: list[Consumer]

    def restored_progress(self, end: int, new_incarnation: Callable[[], int], *, reliable: bool) -> Progress:
        """Return where it continues in a topic that ends at `end`; what is unexpected is reported."""
        if not reliable:
            return Progress(new_incarnation(), 0)
        if self.progress is None:
            _log.error("%s: how far subscription %s was is not known: all is delivered again", self.topic, self.name)
            return Progress(new_incarnation(), 0)
        progress = restored(self.progress, new_incarnation)
        if progress.cursor > end:
            _log.error("%s: subscription %s was at offset %d, but the log ends at %d: it continues there",
                       self.topic, self.name, progress.cursor, end)  # fmt: skip
        return progress


@dataclass(frozen=True, slots=True)
class StoredProducer:
    topic: TopicName
    name: str
    id: int
    owner: str | None


class StoredUsers:
    """Stored producers and subscriptions of all topics."""

    def __init__(
        self,
        producers: dict[tuple[str, ...], dict[str, Any]],
        subscriptions: dict[tuple[str, ...], dict[str, Any]],
        consumers: dict[tuple[str, ...], dict[str, Any]],
        progress: dict[str, bytes],
    ) -> None:
        self._producers = producers
        self._subscriptions = subscriptions
        self._progress = progress
        self._consumers: dict[tuple[str, ...], list[Consumer]] = {}
        for (*of, name), value in consumers.items():
            known = Consumer(name, int(value["id"]), value["key_filters"], value.get("principal"))
            self._consumers.setdefault(tuple(of), []).append(known)

    @classmethod
    async def of_topic(cls, records: Records, topic: TopicName) -> StoredUsers:
        """Read those of one topic."""

        async def below(prefix: str) -> dict[tuple[str, ...], dict[str, Any]]:
            found = await records.list(topic_key(prefix, topic) + "/")
            return {(topic.namespace, topic.topic, *names): value for names, value in found.items()}

        subscriptions = await below(SUBSCRIPTIONS)
        progress = await records.get_all([progress_key(name, topic) for _, _, name in subscriptions])
        return cls(await below(PRODUCERS), subscriptions, await below(CONSUMERS), progress)

    @classmethod
    async def read(cls, records: Records) -> StoredUsers:
        return cls(
            await records.list(PRODUCERS),
            await records.list(SUBSCRIPTIONS),
            await records.list(CONSUMERS),
            await records.values(PROGRESS),
        )

    def producers(self) -> Iterator[StoredProducer]:
        for (namespace, topic, name, *owner), value in self._producers.items():
            yield StoredProducer(TopicName(namespace, topic), name, int(value["id"]), next(iter(owner), None))

    def subscriptions(self) -> Iterator[StoredSubscription]:
        for key, value in self._subscriptions.items():
            namespace, short, name = key
            topic = TopicName(namespace, short)
            stored = self._progress.get(progress_key(name, topic))
            progress = None if stored is None else json.loads(stored)
            yield StoredSubscription(topic, name, value, progress, self._consumers.get(key, []))

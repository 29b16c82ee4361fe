"""Load the broker's stored state at startup, in one read.

Each step visits each record once, so the time grows linearly with the number of subscriptions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from frazil.broker.store.records import CONSUMERS, PRODUCERS, PROGRESS, SUBSCRIPTIONS, Records, progress_key
from frazil.broker.subscriptions.consumer import Consumer
from frazil.core.names import TopicName


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    topic: TopicName
    name: str
    value: dict[str, Any]
    progress: dict[str, Any] | None
    """None for a topic that stores nothing."""
    consumers: list[Consumer]


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

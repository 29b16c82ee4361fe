"""What a broker finds in the metadata store when it starts: read once as a whole, and put in order.

Each step looks at each record once. A store with many subscriptions is read in a time that grows with their number, not
with its square.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from frazil.broker.consumer import Consumer
from frazil.broker.records import CONSUMERS, PRODUCERS, PROGRESS, SUBSCRIPTIONS, Records, progress_key
from frazil.core.names import TopicName


@dataclass(frozen=True, slots=True)
class StoredSubscription:
    topic: TopicName
    name: str
    value: dict[str, Any]
    progress: dict[str, Any] | None
    """None of a topic that keeps nothing."""
    consumers: list[Consumer]


@dataclass(frozen=True, slots=True)
class StoredProducer:
    topic: TopicName
    name: str
    id: int


class StoredUsers:
    """Producers and subscriptions of all topics, as they were stored."""

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
            known = Consumer(name, int(value["id"]), value["key_filters"])
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
        for (namespace, topic, name), value in self._producers.items():
            yield StoredProducer(TopicName(namespace, topic), name, int(value["id"]))

    def subscriptions(self) -> Iterator[StoredSubscription]:
        for key, value in self._subscriptions.items():
            namespace, short, name = key
            topic = TopicName(namespace, short)
            stored = self._progress.get(progress_key(name, topic))
            progress = None if stored is None else json.loads(stored)
            yield StoredSubscription(topic, name, value, progress, self._consumers.get(key, []))

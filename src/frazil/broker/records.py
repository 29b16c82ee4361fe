"""What the broker must still know after a restart, in the metadata store: topics, producers, subscriptions, consumers
and how far each subscription is. `meta.broker_keys` says where.

Progress is {"offset", "acked", "incarnation", "attempts"}. With an offset come
`snapshot_id` and `file`: those that hold the last row before the offset, once the table has it.
Ids outlive a restart, for clients keep using them: a consumer that finds its id unknown may never subscribe again.
Names may hold anything, so they are percent-encoded. One thread does all writes, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import unquote

from frazil.core.names import TopicName
from frazil.meta.broker_keys import CONSUMERS, PRODUCERS, PROGRESS, SUBSCRIPTIONS, TOPICS, progress_key, topic_key
from frazil.meta.store import MetaStore

__all__ = [
    "CONSUMERS",
    "PRODUCERS",
    "PROGRESS",
    "SUBSCRIPTIONS",
    "TOPICS",
    "Records",
    "delete_key",
    "forget_topic",
    "progress_key",
    "topic_key",
    "users_of",
]

Found = TypeVar("Found")


class Records:
    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="frazil-broker-meta")

    async def put(self, key: str, value: dict[str, Any]) -> None:
        """Durable when it returns."""
        await self.put_all({key: value})

    async def put_all(self, values: dict[str, dict[str, Any]]) -> None:
        await self._run(lambda: self._meta.put_all({key: json.dumps(value).encode() for key, value in values.items()}))

    async def get(self, key: str) -> dict[str, Any] | None:
        found = await self._run(lambda: self._meta.get(key))
        return None if found is None else json.loads(found.value)

    async def delete(self, key: str) -> None:
        await self._run(lambda: delete_key(self._meta, key))

    async def list(self, prefix: str) -> dict[tuple[str, ...], dict[str, Any]]:
        """By the names that follow the prefix."""
        found = await self._run(lambda: self._meta.list(prefix))
        return {tuple(map(unquote, one.key[len(prefix) :].split("/"))): json.loads(one.value) for one in found}

    async def users(self, topic: TopicName) -> tuple[int, int]:
        """How many subscriptions and producers it has, also if it can't be opened."""
        return await self._run(lambda: users_of(self._meta, topic))

    async def delete_subscription(self, topic: TopicName, subscription: str) -> None:
        await self._run(lambda: self._delete_subscription(topic, subscription))

    async def delete_topic(self, topic: TopicName) -> None:
        """All that is stored of it, whatever that is."""
        await self._run(lambda: forget_topic(self._meta, topic))

    def close(self) -> None:
        self._thread.shutdown()

    async def _run(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _delete_subscription(self, topic: TopicName, subscription: str) -> None:
        _delete_below(self._meta, topic_key(CONSUMERS, topic, subscription) + "/")
        delete_key(self._meta, topic_key(SUBSCRIPTIONS, topic, subscription))
        delete_key(self._meta, progress_key(subscription, topic))


def users_of(meta: MetaStore, topic: TopicName) -> tuple[int, int]:
    """How many subscriptions and producers are stored of it."""
    subscriptions = meta.list(topic_key(SUBSCRIPTIONS, topic) + "/")
    return len(subscriptions), len(meta.list(topic_key(PRODUCERS, topic) + "/"))


def forget_topic(meta: MetaStore, topic: TopicName) -> None:
    """All that is stored of it. What says that there is anything goes last: cut short, it can be done again."""
    for prefix in (CONSUMERS, SUBSCRIPTIONS, PRODUCERS):
        _delete_below(meta, topic_key(prefix, topic) + "/")
    for entry in meta.list(PROGRESS):
        if entry.key.endswith(str(topic)):
            delete_key(meta, entry.key)
    delete_key(meta, topic_key(TOPICS, topic))


def _delete_below(meta: MetaStore, prefix: str) -> None:
    for entry in meta.list(prefix):
        delete_key(meta, entry.key)


def delete_key(meta: MetaStore, key: str) -> None:
    """Whatever its value is by now."""
    while (found := meta.get(key)) is not None:
        if meta.delete(key, found.revision):
            return

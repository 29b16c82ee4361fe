"""What the broker must still know after a restart, in the metadata store: topics, producers, subscriptions, consumers
and how far each subscription is.

    /broker/topics/{namespace}/{topic}                                            {"reliable", "log_id"}
    /broker/producers/{namespace}/{topic}/{producer}                              {"id"}
    /broker/subscriptions/{namespace}/{topic}/{subscription}                      {"kind"}
    /broker/consumers/{namespace}/{topic}/{subscription}/{consumer}               {"id", "key_filters"}
    /persistent_storage/iceberg/subscriptions/{subscription}/{namespace}/{topic}  {"offset", "acked", "epoch"}

With an offset come `snapshot_id` and `file`: those that hold the last row before the offset, once the table has it.
Ids outlive a restart, for clients keep using them: a consumer that finds its id unknown may never subscribe again.
Names may hold anything, so they are percent-encoded. One thread does all writes, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from frazil.core.names import TopicName
from frazil.meta.store import MetaStore, put

TOPICS, PRODUCERS, SUBSCRIPTIONS, CONSUMERS = (
    f"/broker/{what}/" for what in ("topics", "producers", "subscriptions", "consumers")
)
PROGRESS = "/persistent_storage/iceberg/subscriptions/"

Found = TypeVar("Found")


class Records:
    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="frazil-broker-meta")

    async def put(self, key: str, value: dict[str, Any]) -> None:
        """Durable when it returns."""
        await self._run(lambda: self._put(key, value))

    async def put_all(self, values: dict[str, dict[str, Any]]) -> None:
        def put_each() -> None:
            for key, value in values.items():
                self._put(key, value)

        await self._run(put_each)

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

    def _put(self, key: str, value: dict[str, Any]) -> None:
        put(self._meta, key, json.dumps(value).encode())

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


def topic_key(prefix: str, topic: TopicName, *names: str) -> str:
    return prefix + "/".join([topic.namespace, topic.topic, *(_quoted(name) for name in names)])


def progress_key(subscription: str, topic: TopicName) -> str:
    return f"{PROGRESS}{_quoted(subscription)}/{topic.namespace}/{topic.topic}"


def _quoted(name: str) -> str:
    return quote(name, safe="")

"""What the broker must still know after a restart, in the metadata store: topics, producers, subscriptions, consumers
and how far each subscription is. `meta.broker_keys` says where.

Progress is {"offset", "acked", "incarnation", "attempts"}. With an offset come
`snapshot_id` and `file`: those that hold the last row before the offset, once the table has it.
Ids outlive a restart, for clients keep using them: a consumer that finds its id unknown may never subscribe again.
Names may hold anything, so they are percent-encoded. One thread does all writes, in the order in which they came.
"""

from __future__ import annotations

import asyncio
import builtins
import json
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import unquote

from frazil.broker.consumer import Consumer
from frazil.broker.records_copy import lost_records
from frazil.core.errors import FrazilError
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
    "Stored",
    "forget_topic",
    "progress_key",
    "stored_consumer",
    "topic_key",
    "users_of",
]

Found = TypeVar("Found")
Stored = Mapping[str, Any] | bytes
"""A value: a record, or bytes as they are stored."""

_log = logging.getLogger("frazil.broker")


class Records:
    def __init__(self, meta: MetaStore, copy: MetaStore | None = None) -> None:
        """`copy` is beside the data, see `frazil.broker.records_copy`."""
        self._meta = meta
        self._copy = copy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="frazil-broker-meta")

    async def put(self, key: str, value: dict[str, Any]) -> None:
        """Durable when it returns."""
        await self.put_all({key: value})

    async def put_topics(self, topics: Mapping[TopicName, dict[str, Any]], also: Mapping[str, Stored]) -> None:
        """All or nothing, if they are not many. The copy holds nothing of another log of these names."""
        await self._run(lambda: self._put_topics(topics, also))

    async def put_all(self, values: Mapping[str, Stored], *, copied: bool = True) -> None:
        """All or nothing, if they are not many. Bytes are stored as they are."""
        await self._run(lambda: _put_all(values, [self._meta, *(self._copies if copied else [])]))

    async def copy_all(self, values: Mapping[str, Stored]) -> None:
        """To the copy alone."""
        await self._run(lambda: _put_all(values, self._copies))

    async def recover(self, topics: Collection[TopicName]) -> int:
        """Store again what the store has lost of these topics; how many records that were."""
        return await self._run(lambda: sum(self._recover(copy, topics) for copy in self._copies))

    async def get(self, key: str) -> dict[str, Any] | None:
        found = await self._run(lambda: self._meta.get(key))
        return None if found is None else json.loads(found.value)

    async def delete_all(self, keys: Collection[str]) -> None:
        """Whatever their values are by now."""
        await self._run(lambda: self._delete_all(keys))

    async def withdraw(self, keys: Collection[str]) -> None:
        """Of something that was not made after all. What can't be removed now is harmless, and said."""
        try:
            await self.delete_all(keys)
        except FrazilError as error:
            _log.warning("records of what was refused are left in the metadata store: %s: %s", ", ".join(keys), error)

    async def values(self, prefix: str) -> dict[str, bytes]:
        """By whole keys, not decoded."""
        return {one.key: one.value for one in await self._run(lambda: self._meta.list(prefix))}

    async def list(self, prefix: str) -> dict[tuple[str, ...], dict[str, Any]]:
        """By the names that follow the prefix."""
        found = await self._run(lambda: self._meta.list(prefix))
        return {tuple(map(unquote, one.key[len(prefix) :].split("/"))): json.loads(one.value) for one in found}

    async def users(self, topic: TopicName) -> tuple[int, int]:
        """How many subscriptions and producers it has, also if it can't be opened."""
        return await self._run(lambda: users_of(self._meta, topic))

    async def delete_subscription(self, topic: TopicName, subscription: str) -> None:
        """All that is stored of it, or nothing."""
        keys = [topic_key(SUBSCRIPTIONS, topic, subscription), progress_key(subscription, topic)]
        below = [topic_key(CONSUMERS, topic, subscription) + "/"]
        await self._run(lambda: self._delete_all(keys, below))

    async def delete_topic(self, topic: TopicName, also: Collection[str] = ()) -> None:
        """All that is stored of it, whatever that is, and the keys that go with it."""
        await self._run(lambda: self._forget_topic(topic, also))

    def close(self) -> None:
        self._thread.shutdown()

    async def _run(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def _copies(self) -> builtins.list[MetaStore]:
        return [] if self._copy is None else [self._copy]

    def _put_topics(self, topics: Mapping[TopicName, dict[str, Any]], also: Mapping[str, Stored]) -> None:
        for copy in self._copies:
            for topic, value in topics.items():
                found = copy.get(topic_key(TOPICS, topic))
                if found is not None and json.loads(found.value).get("log_id") != value["log_id"]:
                    forget_topic(copy, topic)
        records = {topic_key(TOPICS, topic): value for topic, value in topics.items()}
        _put_all({**also, **records}, [self._meta, *self._copies])

    def _recover(self, copy: MetaStore, topics: Collection[TopicName]) -> int:
        lost = lost_records(self._meta, copy, topics)
        if lost:
            self._meta.put_all(lost)
        return len(lost)

    def _delete_all(self, keys: Collection[str], below: Collection[str] = ()) -> None:
        """From the copy first: what only the copy has was lost by the store."""
        for store in (*self._copies, self._meta):
            store.delete_all(keys, below)

    def _forget_topic(self, topic: TopicName, also: Collection[str]) -> None:
        for store in (*self._copies, self._meta):
            forget_topic(store, topic, also)


def users_of(meta: MetaStore, topic: TopicName) -> tuple[int, int]:
    """How many subscriptions and producers are stored of it."""
    subscriptions = meta.list(topic_key(SUBSCRIPTIONS, topic) + "/")
    return len(subscriptions), len(meta.list(topic_key(PRODUCERS, topic) + "/"))


def forget_topic(meta: MetaStore, topic: TopicName, also: Collection[str] = ()) -> None:
    """All that is stored of it, and the keys that go with it: all or nothing, if they are not many.

    What says that there is anything goes last: cut short, it can be done again.
    """
    progress = [entry.key for entry in meta.list(PROGRESS, suffix=str(topic))]
    below = [topic_key(prefix, topic) + "/" for prefix in (SUBSCRIPTIONS, CONSUMERS, PRODUCERS)]
    meta.delete_all([*progress, *also, topic_key(TOPICS, topic)], below)


def stored_consumer(topic: TopicName, subscription: str, consumer: Consumer) -> dict[str, Stored]:
    value = {"id": consumer.id, "key_filters": list(consumer.key_filters)}
    return {topic_key(CONSUMERS, topic, subscription, consumer.name): value}


def _put_all(values: Mapping[str, Stored], stores: Sequence[MetaStore]) -> None:
    encoded = {key: _encoded(value) for key, value in values.items()}
    for store in stores:
        store.put_all(encoded)


def _encoded(value: Stored) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()

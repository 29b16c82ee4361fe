"""The broker's durable state in the metadata store: topics, producers, subscriptions, consumers and progress.
`meta.broker_keys` lists the keys.

Progress is {"offset", "acked", "incarnation", "attempts"}. With an offset come `snapshot_id` and `file`: those that
hold the last row before the offset, once the table has it. Ids survive a restart, because clients keep using them: a
consumer with an unknown id may never subscribe again. Names may contain any character, so they are percent-encoded. One
thread does all writes, in order.
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

from frazil.broker.store.records_copy import lost_records, lost_records_of
from frazil.broker.subscriptions.consumer import Consumer
from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.meta.broker_keys import CONSUMERS, PRODUCERS, PROGRESS, SUBSCRIPTIONS, TOPICS, progress_key, topic_key
from frazil.meta.store import KeyAt, MetaStore

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
"""A value: a record, or bytes to store unchanged."""

_log = logging.getLogger("frazil.broker")


class Records:
    def __init__(self, meta: MetaStore, copy: MetaStore | None = None) -> None:
        """`copy` is kept next to the data, see `frazil.broker.store.records_copy`."""
        self._meta = meta
        self._copy = copy
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="frazil-broker-meta")

    async def put(self, key: str, value: dict[str, Any]) -> None:
        """Durable when it returns."""
        await self.put_all({key: value})

    async def put_topics(
        self,
        topics: Mapping[TopicName, dict[str, Any]],
        also: Mapping[str, Stored],
        put: Callable[[Mapping[str, bytes]], object] | None = None,
    ) -> None:
        """All or nothing, if they are not many. The copy holds nothing of another log of these names.

        `put` stores them in the metadata store, with what else must be in one step with them.
        """
        await self._run(lambda: self._put_topics(topics, also, put or self._meta.put_all))

    async def put_all(
        self, values: Mapping[str, Stored], *, copied: bool = True, only: Callable[[str], bool] = lambda _: True
    ) -> None:
        """Atomic, if they are not many. Bytes are stored unchanged.

        `only` is asked for each key, in another thread, right before they are stored.
        """
        await self._run(
            lambda: _put_all(
                {key: value for key, value in values.items() if only(key)},
                [self._meta, *(self._copies if copied else [])],
            )
        )

    async def copy_all(self, values: Mapping[str, Stored]) -> None:
        """Write to the copy alone."""
        await self._run(lambda: _put_all(values, self._copies))

    async def recover(self, topics: Collection[TopicName]) -> int:
        """Store again the records that the store has lost of these topics; returns their number."""
        return await self._run(lambda: sum(self._recover(copy, topics) for copy in self._copies))

    async def recover_topic(self, topic: TopicName) -> int:
        """The same for one topic, at a cost that depends on it alone."""
        return await self._run(lambda: sum(self._recover_topic(copy, topic) for copy in self._copies))

    async def forget_copies(self, topic: TopicName) -> None:
        """Delete what the copy has of a topic: another broker owns it by now, and changes its records."""
        await self._run(lambda: self._forget_copies(topic))

    async def get(self, key: str) -> dict[str, Any] | None:
        found = await self._run(lambda: self._meta.get(key))
        return None if found is None else json.loads(found.value)

    async def delete_all(self, keys: Collection[str]) -> None:
        """Delete the keys unconditionally."""
        await self._run(lambda: self._delete_all(keys))

    async def withdraw(self, keys: Collection[str], instead: Mapping[str, Stored]) -> None:
        """Remove the records of something that was not created, or put back those of before, `instead`.

        A failed removal is harmless, and logged.
        """
        try:
            await self.delete_all([key for key in keys if key not in instead])
            if instead:
                await self.put_all(instead)
        except FrazilError as error:
            _log.warning("records of what was refused are left in the metadata store: %s: %s", ", ".join(keys), error)

    async def get_all(self, keys: Collection[str]) -> dict[str, bytes]:
        """Return the values of those keys that exist, not decoded."""
        found = await self._run(lambda: [self._meta.get(key) for key in keys])
        return {one.key: one.value for one in found if one is not None}

    async def values(self, prefix: str) -> dict[str, bytes]:
        """Return the values by full keys, not decoded."""
        return {one.key: one.value for one in await self._run(lambda: self._meta.list(prefix))}

    async def list(self, prefix: str) -> dict[tuple[str, ...], dict[str, Any]]:
        """Return the records by the names after the prefix."""
        found = await self._run(lambda: self._meta.list(prefix))
        return {tuple(map(unquote, one.key[len(prefix) :].split("/"))): json.loads(one.value) for one in found}

    async def users(self, topic: TopicName) -> tuple[int, int]:
        """Return the number of subscriptions and producers of a topic, even if it cannot be opened."""
        return await self._run(lambda: users_of(self._meta, topic))

    async def delete_subscription(self, topic: TopicName, subscription: str) -> None:
        """Delete everything stored of it, or nothing."""
        keys = [topic_key(SUBSCRIPTIONS, topic, subscription), progress_key(subscription, topic)]
        below = [topic_key(CONSUMERS, topic, subscription) + "/"]
        await self._run(lambda: self._delete_all(keys, below))

    async def delete_topic(self, topic: TopicName, also: Collection[str] = (), *, only_at: KeyAt | None = None) -> bool:
        """Delete everything stored of it, and the companion keys; returns False if `only_at` does not hold any more.

        The copy loses it even then: another owner changes the records by now.
        """
        return await self._run(lambda: self._forget_topic(topic, also, only_at))

    def close(self) -> None:
        self._thread.shutdown()

    async def _run(self, work: Callable[[], Found]) -> Found:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    @property
    def _copies(self) -> builtins.list[MetaStore]:
        return [] if self._copy is None else [self._copy]

    def _put_topics(
        self,
        topics: Mapping[TopicName, dict[str, Any]],
        also: Mapping[str, Stored],
        put: Callable[[Mapping[str, bytes]], object],
    ) -> None:
        for copy in self._copies:
            for topic, value in topics.items():
                found = copy.get(topic_key(TOPICS, topic))
                if found is not None and json.loads(found.value).get("log_id") != value["log_id"]:
                    forget_topic(copy, topic)
        records = {topic_key(TOPICS, topic): value for topic, value in topics.items()}
        encoded = {key: _encoded(value) for key, value in {**also, **records}.items()}
        put(encoded)
        for copy in self._copies:
            copy.put_all(encoded)

    def _recover(self, copy: MetaStore, topics: Collection[TopicName]) -> int:
        lost = lost_records(self._meta, copy, topics)
        if lost:
            self._meta.put_all(lost)
        return len(lost)

    def _forget_copies(self, topic: TopicName) -> None:
        for copy in self._copies:
            if copy.get(topic_key(TOPICS, topic)) is not None:  # it is deleted last
                forget_topic(copy, topic)

    def _recover_topic(self, copy: MetaStore, topic: TopicName) -> int:
        lost = lost_records_of(self._meta, copy, topic)
        if lost:
            self._meta.put_all(lost)
        return len(lost)

    def _delete_all(self, keys: Collection[str], below: Collection[str] = ()) -> None:
        """Delete from the copy first: records that only the copy has were lost by the store."""
        for store in (*self._copies, self._meta):
            store.delete_all(keys, below)

    def _forget_topic(self, topic: TopicName, also: Collection[str], only_at: KeyAt | None) -> bool:
        for copy in self._copies:
            forget_topic(copy, topic, also)
        return forget_topic(self._meta, topic, also, only_at)


def users_of(meta: MetaStore, topic: TopicName) -> tuple[int, int]:
    """Return the number of stored subscriptions and producers."""
    subscriptions = meta.list(topic_key(SUBSCRIPTIONS, topic) + "/")
    return len(subscriptions), len(meta.list(topic_key(PRODUCERS, topic) + "/"))


def forget_topic(meta: MetaStore, topic: TopicName, also: Collection[str] = (), only_at: KeyAt | None = None) -> bool:
    """Delete everything stored of it, and the companion keys: atomically, if they are not many.

    The record that proves its existence is deleted last: an interrupted deletion can be repeated. Returns False if
    `only_at` does not hold.
    """
    progress = [entry.key for entry in meta.list(PROGRESS, suffix=str(topic))]
    below = [topic_key(prefix, topic) + "/" for prefix in (SUBSCRIPTIONS, CONSUMERS, PRODUCERS)]
    names = [*progress, *also, topic_key(TOPICS, topic)]
    if only_at is not None:
        return meta.delete_all(names, below, only_at=only_at)
    meta.delete_all(names, below)
    return True


def stored_consumer(topic: TopicName, subscription: str, consumer: Consumer) -> dict[str, Stored]:
    value: dict[str, Any] = {"id": consumer.id, "key_filters": list(consumer.key_filters)}
    if consumer.owner is not None:
        value["principal"] = consumer.owner
    return {topic_key(CONSUMERS, topic, subscription, consumer.name): value}


def _put_all(values: Mapping[str, Stored], stores: Sequence[MetaStore]) -> None:
    encoded = {key: _encoded(value) for key, value in values.items()}
    for store in stores:
        store.put_all(encoded)


def _encoded(value: Stored) -> bytes:
    return value if isinstance(value, bytes) else json.dumps(value).encode()

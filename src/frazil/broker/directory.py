"""The topics of a broker: opened, made and forgotten, each with what is stored of it.

Whoever calls what changes something holds the broker's lock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from frazil.broker.companion import Companion
from frazil.broker.known import KnownTopics
from frazil.broker.making import create_log, create_logs, new_log_id, to_make
from frazil.broker.records import TOPICS, Records, Stored, topic_key
from frazil.broker.topic import BrokerTopic
from frazil.core.errors import FrazilError, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.partitions import check_form, partition_names, topic_or_partitions
from frazil.core.settings import RetentionSettings
from frazil.log.storage import Storage

_log = logging.getLogger("frazil.broker")


class Directory:
    def __init__(self, storage: Storage, records: Records, companion: Companion) -> None:
        self._storage = storage
        self._records = records
        self._companion = companion
        self.known = KnownTopics()

    async def restore(self) -> None:
        """All topics that were known before. One that can't be opened does not hold up the others."""
        for (namespace, short), value in (await self._records.list(TOPICS)).items():
            name = TopicName(namespace, short)
            try:
                topic = await self._opened(name, bool(value["reliable"]))
                await self._introduce(topic, value)
            except TopicNotFound as error:
                if await self._records.users(name) == (0, 0):  # of a log that was never made
                    await self._records.withdraw([topic_key(TOPICS, name)])
                else:
                    self._waits(name, error)
            except FrazilError as error:
                self._waits(name, error)
            else:
                self.known.add(topic)

    def _waits(self, name: TopicName, error: FrazilError) -> None:
        _log.error("%s: its producers and subscriptions wait until it can be opened: %s", name, error)

    def partitions(self, name: TopicName) -> list[TopicName]:
        """The topic itself, or its partitions in their order; nothing if neither is known."""
        return [one for one in topic_or_partitions(name, self.known.family(name)) if one in self.known]

    async def all_stored(self) -> set[TopicName]:
        """All topics that the log has."""
        return {TopicName.parse(name) for name in await asyncio.to_thread(self._storage.topics)}

    async def stored(self, name: TopicName) -> set[TopicName]:
        """The topic and its partitions that the log has, also those that are not known here."""
        return await asyncio.to_thread(self._storage.family, name)

    async def all_of(self, name: TopicName) -> list[TopicName]:
        """The topic, or all its partitions, in the log or here."""
        return topic_or_partitions(name, await self.stored(name) | self.known.family(name))

    async def add(
        self, name: TopicName, *, reliable: bool, create: bool, also: Mapping[str, Stored] | None = None
    ) -> BrokerTopic:
        """A topic that is not known yet, opened or made; `also` is stored with it, or neither is."""
        self.check_partitioning(name)
        stored = await self.stored(name)
        if create and name not in stored:
            (topic,) = await self._make([name], [name], reliable, partial(create_log, self._storage, name), also or {})
            return topic
        topic = await self._opened(name, reliable or name in stored)
        topic.check_dispatch(reliable=reliable)
        await self._introduce(topic, await self._records.get(topic_key(TOPICS, name)), also)
        self.known.add(topic)
        return topic

    async def create(
        self,
        base: TopicName,
        partitions: int,
        reliable: bool,
        retention: RetentionSettings | None,
        also: Mapping[str, Stored],
    ) -> list[TopicName]:
        """A new topic, or all its partitions: all of them, or none. Returns their names; `TopicExists`."""
        names = partition_names(base, partitions) if partitions else [base]
        missing = to_make(base, partitions, reliable, self.known, await self.stored(base))
        create = partial(create_logs, self._storage, base, partitions, retention)
        await self._make([name for name in names if name not in self.known], missing, reliable, create, also)
        return names

    def check_partitioning(self, name: TopicName) -> None:
        """Also of topics that store nothing, which the log knows nothing of."""
        check_form(name, self.known, has_partitions=name not in self.known and bool(self.partitions(name)))

    async def _opened(self, name: TopicName, reliable: bool) -> BrokerTopic:
        log = await asyncio.to_thread(self._storage.topic, str(name), create=False) if reliable else None
        if log is not None:
            log.check_is_message_topic()
        return BrokerTopic(name, log)

    async def _introduce(
        self, topic: BrokerTopic, known: dict[str, Any] | None, also: Mapping[str, Stored] | None = None
    ) -> None:
        """With what is stored of its name: what is of another log, which was deleted without us, is forgotten."""
        if known is not None and not topic.is_of_log(known.get("log_id")):
            _log.warning("%s was deleted and made again: what is known of the old one is forgotten", topic.name)
            await self.forget(topic.name)
        value = {"reliable": topic.reliable, "log_id": topic.log_id}
        if value != known or also:
            await self._records.put_topics({topic.name: value}, also or {})

    async def _make(
        self,
        names: Sequence[TopicName],
        missing: Collection[TopicName],
        reliable: bool,
        create: Callable[[Mapping[TopicName, str]], None],
        also: Mapping[str, Stored],
    ) -> list[BrokerTopic]:
        """What is known of topics is stored before their logs are made: if that is refused, nothing was done.

        Records of logs that were never made are harmless: they name a log that there is not.
        """
        ids = {one: new_log_id() if one in missing else self._storage.record(str(one)).log_id for one in names}
        for one in names:
            known = await self._records.get(topic_key(TOPICS, one))
            if known is not None and known.get("log_id") not in (None, ids[one]):
                await self.forget(one)
        values = {one: {"reliable": reliable, "log_id": ids[one] if reliable else None} for one in names}
        await self._records.put_topics(values, also)
        try:
            if reliable:
                await asyncio.to_thread(create, ids)
            topics = [await self._opened(one, reliable) for one in names]
            for topic in topics:  # of a log that another door has made meanwhile
                await self._introduce(topic, values[topic.name])
        except BaseException:
            await self._records.withdraw([*also, *(topic_key(TOPICS, one) for one in missing)])
            raise
        for topic in topics:
            self.known.add(topic)
        return topics

    async def forget(self, name: TopicName) -> None:
        """All that is stored of a topic, or nothing."""
        also = await asyncio.to_thread(self._companion.keys, name)
        await self._records.delete_topic(name, also)
        self._companion.forgotten(name)

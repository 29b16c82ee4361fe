"""The topics of a broker: opened, created and forgotten, each with its stored records.

Callers of methods that change something hold the broker's lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from frazil.broker.serial import to_its_end
from frazil.broker.store.cluster import Cluster
from frazil.broker.store.companion import Companion
from frazil.broker.store.records import TOPICS, Records, Stored, topic_key
from frazil.broker.topics.identities import TRIES_MAX, OwnedLog, TopicIdentities, TopicMoved, contended
from frazil.broker.topics.known import KnownTopics
from frazil.broker.topics.making import create_log, create_logs, created_elsewhere, new_log_id, to_make
from frazil.broker.topics.shared_identities import SharedIdentities
from frazil.broker.topics.topic import BrokerTopic
from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, TopicExists, TopicNotFound, TopicUnavailable, TryLater
from frazil.core.names import TopicName
from frazil.core.partitions import check_form, partition_names, topic_or_partitions
from frazil.core.settings import RetentionSettings
from frazil.log.storage import Storage
from frazil.meta.store import MetaStore

_log = logging.getLogger("frazil.broker")


class Directory:
    def __init__(
        self,
        storage: Storage,
        records: Records,
        companion: Companion,
        meta: MetaStore,
        clock: Clock,
        cluster: Cluster | None = None,
    ) -> None:
        self._storage = storage
        self._records = records
        self._companion = companion
        self.identities = (
            TopicIdentities(storage, meta, clock)
            if cluster is None
            else SharedIdentities(storage, meta, clock, cluster)
        )
        self._cluster = cluster
        self.known = KnownTopics()
        self._carrying: asyncio.Task[None] | None = None

    async def restore(self) -> None:
        """Restore all known topics. A topic that cannot be opened does not delay the others."""
        for (namespace, short), value in (await self._records.list(TOPICS)).items():
            name = TopicName(namespace, short)
            try:
                topic = await self._opened(name, bool(value["reliable"]))
                await self._introduce(topic, value)
            except TopicNotFound as error:
                if await self._records.users(name) == (0, 0):  # its log was never created, or deleted elsewhere
                    await self._forget_if_possible(name)
                else:
                    self._waits(name, error)
            except FrazilError as error:
                self._waits(name, error)
            else:
                self.known.add(topic)
        self._carrying = asyncio.create_task(asyncio.to_thread(self.identities.carry_over), name="carry-over")

    async def close(self) -> None:
        """Wait for the current call to the store, then close."""
        self.identities.close()
        if self._carrying is not None:
            (failed,) = await asyncio.gather(self._carrying, return_exceptions=True)
            if isinstance(failed, Exception):
                _log.error("the topics were not copied to the metadata store", exc_info=failed)

    @contextlib.asynccontextmanager
    async def held(self, name: TopicName) -> AsyncIterator[None]:
        """Exclude other creations and deletions of this topic, through any door."""
        taking = asyncio.ensure_future(asyncio.to_thread(self.identities.hold, name))
        try:
            await asyncio.shield(taking)
        except asyncio.CancelledError:  # the thread continues and takes the hold, which this call no longer releases

            def release(done: asyncio.Future[None]) -> None:
                if not done.cancelled() and done.exception() is None:
                    self.identities.release(name)

            taking.add_done_callback(release)
            raise
        try:
            yield
        finally:
            self.identities.release(name)

    async def _forget_if_possible(self, name: TopicName) -> None:
        """With its schema: a later topic of that name inherits nothing."""
        try:
            await self.forget(name)
        except FrazilError as error:
            _log.warning("records of %s, which is not there, are left in the metadata store: %s", name, error)

    def _waits(self, name: TopicName, error: FrazilError) -> None:
        _log.error("%s: its producers and subscriptions wait until it can be opened: %s", name, error)

    def partitions(self, name: TopicName) -> list[TopicName]:
        """Return the topic itself, or its partitions in order; empty if neither is known."""
        return [one for one in topic_or_partitions(name, self.known.family(name)) if one in self.known]

    async def all_stored(self) -> set[TopicName]:
        """Return all topics of the log."""
        return {TopicName.parse(name) for name in await asyncio.to_thread(self._storage.topics)}

    async def stored(self, name: TopicName) -> set[TopicName]:
        """Return the topic and its partitions that have logs, including those unknown here."""
        return await asyncio.to_thread(self.identities.family, name)

    async def here(self, name: TopicName) -> set[TopicName]:
        """Return the topic and its partitions that have logs in this folder."""
        return await asyncio.to_thread(self._storage.family, name)

    async def all_of(self, name: TopicName) -> list[TopicName]:
        """Return the topic, or all its partitions, in this folder or known here."""
        return topic_or_partitions(name, await self.here(name) | self.known.family(name))

    async def check_here(self, names: Iterable[TopicName]) -> None:
        """Raise `TryLater` if another broker owns one of them by now, which this broker has not learnt yet."""
        for one in names:
            if await asyncio.to_thread(self.identities.is_elsewhere, one):
                raise TopicMoved(one)

    async def owned(self, names: Iterable[TopicName]) -> dict[TopicName, OwnedLog | None]:
        """Return how this broker owns them, for `forget`; raises `TopicMoved`."""
        return {one: await asyncio.to_thread(self.identities.owned, one) for one in names}

    async def add(
        self, name: TopicName, *, reliable: bool, create: bool, also: Mapping[str, Stored] | None = None
    ) -> BrokerTopic:
        """Open or create a topic that is not known yet; `also` is stored atomically with it.

        In a cluster an existing topic is known from `adopt` on, with its users: one that is not served is refused.
        """
        self.check_partitioning(name)
        if create:
            create_one = partial(create_log, self._storage, name)
            async with self.held(name):
                if name not in await self.stored(name):
                    try:
                        (topic,) = await self._make([name], [name], reliable, None, create_one, also or {}, {})
                    except TopicExists:
                        if not await asyncio.to_thread(self.identities.is_elsewhere, name):
                            raise
                        raise created_elsewhere(name) from None
                    return topic
        stored = await self.stored(name)
        if name in stored and not (self._cluster is None or self._cluster.serves(name)):
            raise TopicUnavailable(str(name), "it is being opened or moved")
        try:
            topic = await self._opened(name, reliable or name in stored)
        except TopicNotFound:
            if name not in stored:
                raise
            raise TopicUnavailable(str(name), "it was deleted, which this broker has not learnt everywhere") from None
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
        instead: Mapping[str, Stored] | None = None,
        ack: str | None = None,
    ) -> list[TopicName]:
        """Create a topic, or all its partitions: all or none. Returns their names; raises `TopicExists`.

        `also` is stored atomically with it. If its log cannot be created, `instead` has the records of before, if any.
        """
        names = partition_names(base, partitions) if partitions else [base]
        create = partial(create_logs, self._storage, base, partitions, retention, ack=ack)
        async with self.held(base):
            known = {name: self.known[name].reliable for name in self.known.family(base)}
            missing = to_make(base, partitions, reliable, known, await self.stored(base))
            unknown = [name for name in names if name not in self.known]
            await self._make(unknown, missing, reliable, retention, create, also, instead or {}, ack)
        return names

    def check_partitioning(self, name: TopicName) -> None:
        """Check against all topics, including non-reliable ones, which the log does not know."""
        check_form(name, self.known, has_partitions=name not in self.known and bool(self.partitions(name)))

    async def adopt(self, name: TopicName) -> BrokerTopic | None:
        """Open a topic that this broker owns by now, with its stored records.

        Returns None for a topic that no client of the broker has used: it is added when one asks for it.
        """
        value = await self._records.get(topic_key(TOPICS, name))
        if value is None:
            return None
        topic = await self._opened(name, bool(value["reliable"]))
        if topic.reliable and not await asyncio.to_thread(self.identities.has_log, name, topic.log_id):
            raise TryLater(f"the record of {name} names another log by now; try again")
        await self._introduce(topic, value)
        self.known.add(topic)
        return topic

    async def _opened(self, name: TopicName, reliable: bool) -> BrokerTopic:
        log = await asyncio.to_thread(self._storage.topic, str(name), create=False) if reliable else None
        if log is not None:
            log.check_is_message_topic()
        return BrokerTopic(name, log)

    async def _introduce(
        self, topic: BrokerTopic, known: dict[str, Any] | None, also: Mapping[str, Stored] | None = None
    ) -> None:
        """Add a topic with its stored records; records of another log, which was deleted elsewhere, are dropped."""
        if known is not None and not topic.is_of_log(known.get("log_id")):
            await self.check_here([topic.name])
            _log.warning("%s was deleted and recreated: the old one's state is dropped", topic.name)
            if await asyncio.to_thread(self.identities.has_log, topic.name, topic.log_id):
                await self._forget_records(topic.name)  # what was set for it since it was made stays
            else:
                await self.forget(topic.name)
                await asyncio.to_thread(self.identities.follow, topic.name)
        value = {"reliable": topic.reliable, "log_id": topic.log_id}
        if value != known or also:
            await self._records.put_topics({topic.name: value}, also or {})

    async def _make(
        self,
        names: Sequence[TopicName],
        missing: Collection[TopicName],
        reliable: bool,
        retention: RetentionSettings | None,
        create: Callable[[Mapping[TopicName, str]], None],
        also: Mapping[str, Stored],
        instead: Mapping[str, Stored],
        ack: str | None = None,
    ) -> list[BrokerTopic]:
        """Store the records before the logs are created: if that is refused, nothing was done.

        Records of logs that were never created are harmless: they name a log that does not exist. The caller holds the
        topic's lock.
        """
        return await to_its_end(self._make_all(names, missing, reliable, retention, create, also, instead, ack))

    async def _make_all(
        self,
        names: Sequence[TopicName],
        missing: Collection[TopicName],
        reliable: bool,
        retention: RetentionSettings | None,
        create: Callable[[Mapping[TopicName, str]], None],
        also: Mapping[str, Stored],
        instead: Mapping[str, Stored],
        ack: str | None = None,
    ) -> list[BrokerTopic]:
        ids = {one: new_log_id() if one in missing else self._storage.record(str(one)).log_id for one in names}
        for one in names:
            known = await self._records.get(topic_key(TOPICS, one))
            if known is not None and known.get("log_id") not in (None, ids[one]):
                if await asyncio.to_thread(self.identities.is_elsewhere, one):
                    raise TopicExists(str(one))
                await self.forget(one)
        values = {one: {"reliable": reliable, "log_id": ids[one] if reliable else None} for one in names}
        reserved = {one: ids[one] if reliable else None for one in missing}
        reserve = partial(self.identities.reserve, names[0], reserved, None, retention, ack=ack)
        await self._records.put_topics(values, also, reserve)
        try:
            if reliable:
                await asyncio.to_thread(create, ids)
            topics = [await self._opened(one, reliable) for one in names]
            for topic in topics:  # its log was created through another protocol meanwhile
                await self._introduce(topic, values[topic.name])
        except BaseException:
            await self._records.withdraw([*also, *(topic_key(TOPICS, one) for one in missing)], instead)
            await asyncio.to_thread(self.identities.undo, names[0], reserved)
            raise
        for topic in topics:
            self.known.add(topic)
        return topics

    async def delete_log(self, name: TopicName) -> None:
        """Delete the log of a topic whose records are deleted."""
        await asyncio.to_thread(self._storage.delete_topic, str(name))
        await asyncio.to_thread(self.identities.follow, name)  # other partitions keep the record

    async def forget(self, name: TopicName, owned: OwnedLog | None = None) -> None:
        """All that is stored of a topic, or nothing. Its record goes with the last of its partitions.

        Raises `TopicMoved` if another broker owns it by now, or it is not as this broker has `owned` it: what its new
        owner has stored stays.
        """
        is_last = False

        async def companions() -> list[str]:
            nonlocal is_last
            is_last = await asyncio.to_thread(self.identities.is_last, name, set(self.known.family(name)))
            if not is_last:
                return []
            own = await asyncio.to_thread(self.identities.keys_of, name)
            return [*await asyncio.to_thread(self._companion.keys, name), *own]

        await self._forget_records(name, owned, companions)
        self._companion.forgotten(name)
        await asyncio.to_thread(self.identities.removed, name, owned)
        if not is_last and name in self.known and not self.known[name].reliable:
            await asyncio.to_thread(self.identities.follow, name)

    async def _forget_records(
        self,
        name: TopicName,
        owned: OwnedLog | None = None,
        companions: Callable[[], Awaitable[Collection[str]]] | None = None,
    ) -> None:
        """Delete what the broker has stored of a topic, on condition that its record stays as it is meanwhile."""
        for _ in range(TRIES_MAX):
            unchanged = await asyncio.to_thread(self.identities.unchanged, name, owned)
            also = [] if companions is None else await companions()
            if await self._records.delete_topic(name, also, only_at=unchanged):
                return
        raise contended(name)

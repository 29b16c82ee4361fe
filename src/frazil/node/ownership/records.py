"""Reads and compare-and-set changes of the records of topics, for one broker. What it reads, the view learns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from frazil.core.errors import TryLater
from frazil.core.names import TopicName
from frazil.meta import cluster_keys as keys
from frazil.meta.store import ABSENT, MetaStore
from frazil.meta.topic_records import TopicIdentity, topic_record_key
from frazil.node.ownership.calls import MetaCalls
from frazil.node.ownership.view import Changes, ClusterView

TRIES_MAX = 20


@dataclass(frozen=True, slots=True)
class OwnerChange:
    """A change of the owner of a topic: it holds if the record still has the former owner and epoch."""

    topic: TopicName
    owner: str
    epoch: int
    to: str


class OwnershipRecords:
    """Used on one event loop."""

    def __init__(
        self, meta: MetaStore, view: ClusterView, calls: MetaCalls, changed: Callable[[Changes], None]
    ) -> None:
        self._meta = meta
        self._view = view
        self._calls = calls
        self._changed = changed

    async def read(self, topic: TopicName) -> tuple[TopicIdentity, int] | None:
        """Return the present record of a topic and its revision; None if there is none, or the topic is not in it."""
        key = topic_record_key(topic)
        entry = await self._calls.call(lambda: self._meta.get(key))
        if entry is None:
            return None
        self._learn(key, entry.value, entry.revision)
        identity = TopicIdentity.decode(entry.value)
        return (identity, entry.revision) if topic in identity.logs else None

    async def look_for(self, broker_id: str) -> None:
        """Learn of a broker's session, if this broker has not seen it yet: it may have just started."""
        if self._view.is_gone(broker_id):
            key = keys.BROKERS + broker_id
            entry = await self._calls.call(lambda: self._meta.get(key))
            if entry is not None:
                self._learn(key, entry.value, entry.revision)

    async def assign(self, changes: Collection[OwnerChange]) -> bool:
        """Name new owners of topics that share one record, each with the next epoch.

        Those that do not hold any more are left out; returns whether all were made.
        """
        first = next(iter(changes)).topic
        key = topic_record_key(first)
        for _ in range(TRIES_MAX):
            entry = await self._calls.call(lambda: self._meta.get(key))
            if entry is None:
                return False
            self._learn(key, entry.value, entry.revision)
            identity = TopicIdentity.decode(entry.value)
            held = [one for one in changes if _holds(identity, one)]
            if not held:
                return False
            for one in held:
                identity = identity.owned_by(one.topic, one.to, one.epoch + 1)
            if await self._put(key, identity.encode(), entry.revision):
                return len(held) == len(changes)
        raise TryLater(f"the record of {first} is changed by others all the time; try again")

    async def confirm(self, topic: TopicName, serving: keys.ServingRecord) -> bool:
        """Record that this broker serves a topic, unless the topic's record names another owner by now.

        The record is read after the revision that is compared, so an answer that is late replaces no later one.
        """
        key = keys.topic_key(keys.SERVING, topic)
        revision = self._view.revision(key)
        for _ in range(TRIES_MAX):
            found = await self.read(topic)
            if found is None:
                return False
            identity, _ = found
            if (identity.owner_of(topic), identity.epoch_of(topic)) != (serving.broker, serving.epoch):
                return False
            if await self._put(key, serving.encode(), revision):
                return True
            entry = await self._calls.call(lambda: self._meta.get(key))
            revision = ABSENT if entry is None else entry.revision
        raise TryLater(f"{key} is changed by others all the time; try again")

    async def request(self, topic: TopicName, move: keys.MoveRecord) -> bool:
        """Ask for a move; returns False if another is already asked for."""
        key = keys.topic_key(keys.MOVES, topic)
        return await self._put(key, move.encode(), ABSENT)

    async def report_problem(self, topic: TopicName, move: keys.MoveRecord) -> None:
        """Store why a move failed, for the caller that requested it."""
        key = keys.topic_key(keys.MOVES, topic)
        await self._put(key, move.encode(), self._view.revision(key))

    async def withdraw(self, topic: TopicName) -> None:
        """Remove the request of a move."""
        await self.delete(keys.topic_key(keys.MOVES, topic))

    async def clear(self, topic: TopicName) -> None:
        """Remove what a deleted topic has left: its requested move, and who served it.

        Nothing is done if the topic has a record: watches of different keys do not wait for each other, so a request
        may be seen before the topic itself. What a later topic of the name has got meanwhile stays.
        """
        left = [keys.topic_key(prefix, topic) for prefix in (keys.SERVING, keys.MOVES)]
        revisions = {key: self._view.revision(key) for key in left}
        if await self.read(topic) is not None:
            return
        for key, revision in revisions.items():
            if revision != ABSENT:
                await self._calls.call(lambda key=key, at=revision: self._meta.delete(key, at))  # type: ignore[misc]

    async def delete(self, key: str) -> None:
        """Delete a key as this broker knows it; nothing happens if it has been changed since."""
        revision = self._view.revision(key)
        if revision != ABSENT:
            await self._calls.call(lambda: self._meta.delete(key, revision))

    async def put(self, key: str, value: bytes) -> None:
        """Set a key that only this broker or an operator changes."""
        await self._calls.call(lambda: self._meta.put_all({key: value}))

    async def _put(self, key: str, value: bytes, revision: int) -> bool:
        made = await self._calls.call(lambda: self._meta.put_if(key, value, revision))
        if made is not None:
            self._learn(key, value, made)
        return made is not None

    def _learn(self, key: str, value: bytes, revision: int) -> None:
        changes = self._view.learn(key, value, revision)
        if changes.topics or changes.brokers:
            self._changed(changes)


def by_record(changes: Collection[OwnerChange]) -> Mapping[str, list[OwnerChange]]:
    """Group changes by the record that they change."""
    grouped: dict[str, list[OwnerChange]] = {}
    for one in changes:
        grouped.setdefault(topic_record_key(one.topic), []).append(one)
    return grouped


def _holds(identity: TopicIdentity, one: OwnerChange) -> bool:
    if one.topic not in identity.logs:
        return False
    return (identity.owner_of(one.topic) or "", identity.epoch_of(one.topic)) == (one.owner, one.epoch)

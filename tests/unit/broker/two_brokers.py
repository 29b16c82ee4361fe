"""Two brokers on one metadata store, each with its own folder. A hand carries logs from one folder to the other."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path

from broker_world import QUICK, TOPIC

import frazil
from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.clock import SystemClock
from frazil.core.names import TopicName
from frazil.core.rows import Origin
from frazil.log.storage import Storage
from frazil.meta.sqlite import SqliteStore
from frazil.meta.topic_records import TopicIdentity, topic_record_key

NAME = TopicName.parse(TOPIC)


class RecordedCluster:
    """What the records say, read anew at each call."""

    def __init__(self, broker_id: str, meta: SqliteStore) -> None:
        self.broker_id = broker_id
        self._meta = meta

    async def created(self, topic: TopicName) -> None:
        assert self.owns(topic)

    async def publish_elsewhere(self, topic: TopicName, message: OutgoingMessage) -> bool:
        return False

    def owns(self, name: TopicName) -> bool:
        found = self._meta.get(topic_record_key(name))
        return found is not None and TopicIdentity.decode(found.value).owner_of(name) == self.broker_id

    def serves(self, name: TopicName) -> bool:
        return self.owns(name)

    def family(self, name: TopicName) -> Collection[TopicName]:
        found = self._meta.get(topic_record_key(name))
        return [] if found is None else set(TopicIdentity.decode(found.value).logs)


class Side:
    """One broker."""

    def __init__(self, broker_id: str, folder: Path, meta: Path) -> None:
        self.id = broker_id
        self.folder = folder / broker_id
        self.meta = SqliteStore(meta)
        self.storage: Storage = frazil.open(self.folder)
        self.storage.admission.withhold_all()
        self.copy = SqliteStore(self.folder / "copy.db")
        self.cluster = RecordedCluster(broker_id, self.meta)
        self.broker = Broker(self.storage, self.meta, QUICK, SystemClock(), copy=self.copy, cluster=self.cluster)
        self.admin = BrokerAdmin(self.broker)

    async def send(self, *payloads: str, topic: str = TOPIC) -> int:
        producer = await self.broker.create_producer(topic, "p", reliable=True)
        for payload in payloads:
            await producer.topic.publish(OutgoingMessage(payload.encode(), None, {}, Origin("p", 1)))
        return producer.id

    async def subscribe(self, name: str = "s", topic: str = TOPIC, kind: Kind = Kind.EXCLUSIVE) -> int:
        return await self.broker.subscribe(topic, name, kind, "c")

    async def take(self, number: int, count: int) -> list[tuple[int, str]]:
        stream = self.broker.connect(number)[3]
        found = []
        for _ in range(count):
            entry = await stream.take()
            assert entry is not None
            found.append((entry.offset, entry.message.payload.decode()))
        return found

    def log_of(self, name: TopicName) -> Path:
        return self.storage.settings.log_folder / name.namespace / name.topic

    def record(self, name: TopicName = NAME) -> TopicIdentity:
        found = self.meta.get(topic_record_key(name))
        assert found is not None
        return TopicIdentity.decode(found.value)

    def records(self) -> dict[str, bytes]:
        return {one.key: one.value for one in self.meta.list("/")}

    async def close(self) -> None:
        await self.broker.close()
        self.storage.close()
        self.copy.close()
        self.meta.close()


async def hand_over(giver: Side, taker: Side, name: TopicName = NAME, *, crashed: bool = False) -> None:
    """Move a topic with its log. `crashed`: the giver has stored nothing more, and is not asked."""
    if not crashed:
        await giver.broker.release(name)
    giver.storage.admission.withhold(name)
    found = taker.meta.get(topic_record_key(name))
    assert found is not None
    known = TopicIdentity.decode(found.value)
    moved = known.owned_by(name, taker.id, known.epoch_of(name) + 1)
    assert taker.meta.put_if(found.key, moved.encode(), found.revision) is not None
    if known.logs[name].log_id is not None:
        if name in taker.storage.admission.withheld():
            taker.storage.admission.remove(name)
        shutil.copytree(giver.log_of(name), taker.log_of(name))
        taker.storage._catalog.withhold(name)
        taker.storage.admission.admit(name)
    await taker.broker.adopt(name, was_here=False)


@asynccontextmanager
async def two_brokers(folder: Path) -> AsyncIterator[tuple[Side, Side]]:
    sides = [Side(one, folder, folder / "meta.db") for one in ("a", "b")]
    async with contextlib.AsyncExitStack() as stack:
        for side in sides:
            await side.broker.start()
            stack.push_async_callback(side.close)
        yield sides[0], sides[1]

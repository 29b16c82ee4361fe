"""A full disk under the metadata: messages are delivered and acknowledged still, what must be stored is refused and
has no effect, and all goes on by itself once there is room."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.subscriptions.consumer import Stream
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.clock import SystemClock
from frazil.core.names import TopicName
from frazil.core.rows import Origin
from frazil.core.settings.broker import BrokerSettings
from frazil.meta.sqlite import SqliteStore

TOPIC = "/crash/orders"
NAME = TopicName.parse(TOPIC)
SETTINGS = BrokerSettings(progress_flush_ms=20, max_unacked_messages=1_000)


def fill(path: Path) -> None:
    """Not a byte is left."""
    with open(path, "ab", buffering=0) as file:
        for size in (64 * 1024, 4096, 512, 1):
            with contextlib.suppress(OSError):  # there is no room for so many
                while file.write(bytes(size)) == size:
                    pass


class Served:
    """A broker whose metadata is on the small file system, and whose log is not."""

    def __init__(self, storage: frazil.Storage, meta: SqliteStore) -> None:
        self.storage = storage
        self.meta = meta
        self.broker = Broker(storage, meta, SETTINGS, SystemClock())
        self.admin = BrokerAdmin(self.broker)

    @property
    def subscription(self) -> Subscription:
        found = self.broker.subscription(TOPIC, "s")
        assert isinstance(found, Subscription)
        return found

    async def send(self, count: int) -> None:
        producer = await self.broker.create_producer(TOPIC, "p", reliable=True)
        for _ in range(count):
            await producer.topic.publish(OutgoingMessage(b"x", None, {}, Origin("p", 1)))

    async def connect(self) -> Stream:
        number = await self.broker.subscribe(TOPIC, "s", Kind.EXCLUSIVE, "c")
        return self.broker.connect(number)[3]

    async def take_and_ack(self, stream: Stream, count: int) -> list[int]:
        taken = []
        for _ in range(count):
            entry = await asyncio.wait_for(stream.take(), 30)
            assert entry is not None
            self.subscription.ack(entry.offset, stream.incarnation)
            taken.append(entry.offset)
        return taken

    async def until_refused(self, stream: Stream) -> None:
        """Acknowledge until progress can't be stored: what SQLite has of room in its files is used up first."""
        for _ in range(2_000):
            await self.send(1)
            await self.take_and_ack(stream, 1)
            try:
                await self.broker._progress.flush()
            except frazil.DiskFull:
                return
        raise AssertionError("the disk is not full")

    def seen(self) -> Any:
        """All that the refused calls would change."""
        topics = {
            str(name): (sorted(topic.producers), {one: sorted(of.consumers) for one, of in topic.subscriptions.items()})
            for name, topic in self.broker.topics.items()
        }
        one = self.subscription
        return topics, one.own_policy, one.incarnation, self.storage.topics()


@contextlib.asynccontextmanager
async def served(data: Path, meta_folder: Path) -> Any:
    meta = SqliteStore(meta_folder / "meta.db")
    with frazil.open(data) as storage:
        made = Served(storage, meta)
        await made.broker.start()
        try:
            yield made
        finally:
            await made.broker.close()
            meta.close()


def test_a_full_disk_under_the_metadata_refuses_changes_and_holds_up_no_message(
    small_file_system: Path, tmp_path: Path
) -> None:
    ballast = small_file_system / "ballast"

    async def go() -> None:
        async with served(tmp_path / "data", small_file_system) as here:
            await here.send(10)
            stream = await here.connect()
            await here.send(10)
            assert await here.take_and_ack(stream, 5) == list(range(10, 15))
            await here.broker._progress.flush()
            fill(ballast)
            await here.take_and_ack(stream, 5)
            await here.until_refused(stream)
            await refusals(here)
            await here.send(20)
            end = here.subscription.end
            assert (await here.take_and_ack(stream, 20))[-1] == end - 1, "messages are delivered and acknowledged"
            durable = here.subscription.durable_end
            assert durable < end
            ballast.unlink()
            for _ in range(3_000):
                if here.subscription.durable_end == end:
                    break
                await asyncio.sleep(0.01)
            assert here.subscription.durable_end == end, "it is stored by itself once there is room"
            await here.admin.set_policy(NAME, "s", lambda _: OwnPolicy(redeliveries_max=3))
            assert await here.broker.subscribe(TOPIC, "t", Kind.SHARED, "d")
            await here.send(3)
            fill(ballast)
            assert len(await here.take_and_ack(stream, 3)) == 3
            await here.until_refused(stream)
            last_durable, last_end = here.subscription.durable_end, here.subscription.end
        with contextlib.suppress(frazil.DiskFull):  # there may be no room to open it; then it is said so
            SqliteStore(small_file_system / "meta.db").close()
        ballast.unlink()
        async with served(tmp_path / "data", small_file_system) as here:
            assert sorted(here.broker.topics[NAME].subscriptions) == ["s", "t"]
            assert here.subscription.own_policy == OwnPolicy(redeliveries_max=3)
            assert last_durable <= here.subscription.cursor.end <= last_end, "nothing is passed over"
            stream = await here.connect()
            left = list(range(here.subscription.cursor.end, last_end))
            assert await here.take_and_ack(stream, len(left)) == left

    asyncio.run(asyncio.wait_for(go(), 100))


async def refusals(here: Served) -> None:
    """Each call is refused by the same clear error, and changes nothing."""
    before, stored = here.seen(), [(one.key, one.value) for one in here.meta.list("/")]
    other = TopicName.parse("/crash/new")
    calls = {
        "subscribe": lambda: here.broker.subscribe(TOPIC, "new", Kind.SHARED, "c"),
        "a consumer": lambda: here.broker.create_producer(TOPIC, "new", reliable=True),
        "a producer of a new topic": lambda: here.broker.create_producer(str(other), "p", reliable=True),
        "partitions": lambda: here.broker.create_topics(other, 3, reliable=True, retention=None),
        "a policy": lambda: here.admin.set_policy(NAME, "s", lambda _: OwnPolicy(redeliveries_max=2)),
        "a reset": lambda: here.admin.reset(NAME, "s", 0),
        "a subscription deleted": lambda: here.admin.delete_subscription(NAME, "s"),
        "a topic deleted": lambda: here.broker.delete_topic(NAME, force=True),
    }
    for what, call in calls.items():
        with pytest.raises(frazil.DiskFull):
            await call()
        assert here.seen() == before, what
        assert [(one.key, one.value) for one in here.meta.list("/")] == stored, what

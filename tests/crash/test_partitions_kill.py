"""A topic with partitions, created and deleted by the broker, and the broker killed between any two steps."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import frazil
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.subscriptions.subscription import Subscription
from frazil.core.clock import SystemClock
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.core.settings.broker import BrokerSettings
from frazil.meta.opening import open_meta

COUNT = 2
TOPIC = TopicName.parse("/default/split")
NAMES = [f"{TOPIC}-part-{number}" for number in range(COUNT)]
OTHER = "/default/other"


@contextlib.asynccontextmanager
async def served(data: Path) -> AsyncIterator[Broker]:
    settings = Settings.of_folder(data)
    with frazil.open(settings) as storage, contextlib.closing(open_meta(settings)) as meta:
        broker = Broker(storage, meta, BrokerSettings(), SystemClock())
        await broker.start()
        yield broker
        await broker.close()


def rounds(tmp_path: Path, what: str) -> list[Path]:
    """A copy of the folder for each step at which the call was killed; in the last one it was not."""
    child = Path(__file__).parent / "partitions_child.py"
    command = [sys.executable, str(child), tmp_path / "template", tmp_path / "copies", what, str(TOPIC)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    told = [line.split() for line in done.stdout.splitlines()]
    assert [ended for _, ended in told] == ["False"] * (len(told) - 1) + ["True"]
    return [tmp_path / "copies" / number for number, _ in told]


def records(data: Path, topic: str) -> list[str]:
    with contextlib.closing(open_meta(Settings.of_folder(data))) as meta:
        return [entry.key for entry in meta.list("/") if topic in entry.key]


async def fill(data: Path, *, with_topic: bool) -> None:
    async with served(data) as broker:
        await broker.create_producer(OTHER, "p", reliable=True)
        await broker.subscribe(OTHER, "s", Kind.SHARED, "c")
        if with_topic:
            await broker.create_topics(TOPIC, COUNT, reliable=True, retention=None)
            for name in NAMES:
                await broker.subscribe(name, "s", Kind.SHARED, "c")
                broker._storage.topic(name).publish_many(["a", "b", "c"])
                subscription = broker.subscription(name, "s")
                assert isinstance(subscription, Subscription)
                subscription.ack(0, subscription.incarnation)


def test_a_creation_that_is_killed_is_completed_by_the_next_and_can_be_deleted(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "template", with_topic=False))
    found = set()

    async def deleted(data: Path) -> None:
        async with served(data) as broker:
            if any(name in NAMES for name in broker._storage.topics()):
                await broker.delete_topic(TOPIC, force=False)
            assert broker._storage.topics() == [OTHER]
            await broker.create_topics(TOPIC, 0, reliable=True, retention=None)  # by that name, in another form
            await broker.delete_topic(TOPIC, force=True)
        assert [key for key in records(data, "/split") if not key.startswith("/broker/topics/")] == []

    async def completed(data: Path) -> None:
        async with served(data) as broker:
            stored = [name for name in broker._storage.topics() if name in NAMES]
            found.add(len(stored))
            assert NAMES[0] not in stored or len(stored) == COUNT, "the first partition says that all are there"
            assert set(map(str, broker.topics)) <= {*stored, OTHER}, "no topic is known that there is not"
            if NAMES[0] not in stored:
                made = await broker.create_topics(TOPIC, COUNT, reliable=True, retention=None)
                assert list(map(str, made)) == NAMES
            assert await broker.discover(TOPIC) == NAMES
            await broker.subscribe(NAMES[1], "s", Kind.SHARED, "c")
        async with served(data) as broker:
            assert broker.partitions(TOPIC) == NAMES, "also after a restart"
            assert list(broker.topics[TopicName.parse(NAMES[1])].subscriptions) == ["s"]
            await broker.delete_topic(TOPIC, force=True)
            assert broker._storage.topics() == [OTHER]
        assert records(data, "/split") == []
        assert len(records(data, "/other")) == 6

    for data in rounds(tmp_path, "create"):
        shutil.copytree(data, tmp_path / "again" / data.name)
        asyncio.run(asyncio.wait_for(completed(data), 60))
        asyncio.run(asyncio.wait_for(deleted(tmp_path / "again" / data.name), 60))
    assert found == {0, 1, 2}, "it was killed at each of them"


def test_a_deletion_that_is_killed_keeps_what_it_did_not_reach_and_is_finished_by_the_next(tmp_path: Path) -> None:
    asyncio.run(fill(tmp_path / "template", with_topic=True))
    found = set()

    async def check(data: Path) -> None:
        async with served(data) as broker:
            stored = [name for name in broker._storage.topics() if name in NAMES]
            found.add(len(stored))
            assert stored == NAMES[: len(stored)], "the last goes first"
            for name in stored[:-1]:  # of the one that it was at, the records may be gone
                subscription = broker.subscription(name, "s")
                assert isinstance(subscription, Subscription)
                assert (subscription.cursor.end, subscription.end) == (1, 3)
            if stored:
                await broker.delete_topic(TOPIC, force=True)
            await broker.create_topics(TOPIC, COUNT, reliable=True, retention=None)
            for name in NAMES:
                assert not broker.topics[TopicName.parse(name)].subscriptions, "nothing is inherited"
            await broker.delete_topic(TOPIC, force=False)
        assert records(data, "/split") == []
        assert len(records(data, "/other")) == 6

    for data in rounds(tmp_path, "delete"):
        asyncio.run(asyncio.wait_for(check(data), 60))
    assert found == {0, 1, 2}

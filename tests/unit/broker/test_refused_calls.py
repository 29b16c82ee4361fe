"""A call that the metadata store refuses has no effect, neither now nor after a restart; the same call then succeeds.

Each call is made again and again: the first time its first write is refused, then its second, until none is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from broker_world import QUICK, TOPIC, World, run

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.subscriptions.subscription import Subscription
from frazil.core.errors import DiskFull, FrazilError, MetadataUnavailable
from frazil.core.names import TopicName
from frazil.core.settings.broker import Poison
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.meta.sqlite import SqliteStore

NAME = TopicName.parse(TOPIC)
NEW = "/default/new"
WRITES = ("put_if", "put_all", "delete", "delete_all")
TRIES_MAX = 20

Call = Callable[[World], Awaitable[Any]]


class Refusals:
    """Refuses the nth write and all that follow, until `lift`."""

    def __init__(self, meta: SqliteStore, error: FrazilError) -> None:
        self._meta = meta
        self._error = error
        self.refused = 0

    @contextlib.contextmanager
    def after(self, writes: int) -> Any:
        self.refused = 0
        left = writes
        with contextlib.ExitStack() as stack:
            for name in WRITES:
                real = getattr(self._meta, name)

                def write(*args: Any, real: Any = real, **more: Any) -> Any:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        self.refused += 1
                        raise self._error
                    return real(*args, **more)

                stack.enter_context(mock.patch.object(self._meta, name, write))
            yield


def stored(here: World) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in here.meta.list("/")}


def state(here: World) -> Any:
    """All that a caller can see of topics, producers, subscriptions and consumers."""
    return {
        str(name): (
            sorted((one.id, one.name) for one in topic.producers.values()),
            sorted(
                (
                    one.name, str(one.kind),
                    sorted((each.id, each.name, each.key_filters) for each in one.consumers.values()),
                    (one.incarnation, one.cursor.end, one.own_policy) if isinstance(one, Subscription) else None,
                )
                for one in topic.subscriptions.values()
            ),
        )
        for name, topic in here.broker.topics.items()
    }  # fmt: skip


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[World]:
    with frazil.open(folder / "data") as storage:
        made = World(storage, folder, QUICK.model_copy(update={"progress_flush_ms": 600_000}))
        await made.broker.start()
        try:
            yield made
        finally:
            await made.broker.close()
            made.meta.close()


async def begin(here: World) -> None:
    """A topic with a producer, a key-shared subscription with a consumer, and messages that it has not acknowledged."""
    await here.broker.create_producer(TOPIC, "p", reliable=True)
    await here.broker.subscribe(TOPIC, "s", Kind.KEY_SHARED, "c", ["a*"])
    await here.send("a", "b", "c")
    await here.broker.create_topics(TopicName.parse("/default/parts"), 3, reliable=True, retention=None)
    await here.broker.subscribe("/default/parts-part-1", "s", Kind.SHARED, "c")


def policy(old: OwnPolicy) -> OwnPolicy:
    return OwnPolicy(poison=Poison.DROP, redeliveries_max=1)


CALLS: dict[str, Call] = {
    "a producer of a new topic": lambda here: here.broker.create_producer(NEW, "q", reliable=True),
    "a producer of a new topic that keeps nothing": lambda here: here.broker.create_producer(NEW, "q", reliable=False),
    "a producer": lambda here: here.broker.create_producer(TOPIC, "q", reliable=True),
    "a subscription": lambda here: here.broker.subscribe(TOPIC, "t", Kind.SHARED, "d"),
    "a consumer": lambda here: here.broker.subscribe(TOPIC, "s", Kind.KEY_SHARED, "d"),
    "other filters": lambda here: here.broker.subscribe(TOPIC, "s", Kind.KEY_SHARED, "c", ["b*"]),
    "a topic": lambda here: here.broker.create_topics(TopicName.parse(NEW), 0, reliable=True, retention=None),
    "partitions": lambda here: here.broker.create_topics(TopicName.parse(NEW), 4, reliable=True, retention=None),
    "partitions that keep nothing": lambda here: here.broker.create_topics(
        TopicName.parse(NEW), 4, reliable=False, retention=None
    ),
    "a policy": lambda here: here.admin.set_policy(NAME, "s", policy),
    "a policy with its topic": lambda here: here.broker.policies.set(
        here.broker.topics[NAME], "s", lambda _: OwnPolicy(dead_letter_topic=NEW), TopicName.parse(NEW)
    ),
    "a reset": lambda here: here.admin.reset(NAME, "s", 2),
    "a subscription deleted": lambda here: here.admin.delete_subscription(NAME, "s"),
    "a topic deleted": lambda here: here.broker.delete_topic(NAME, force=True),
}


@pytest.mark.parametrize(
    "error", [DiskFull("meta.db", "no room"), MetadataUnavailable("etcd", "it does not answer")], ids=["full", "away"]
)
@pytest.mark.parametrize("what", CALLS)
def test_a_refused_call_has_no_effect(tmp_path: Path, what: str, error: FrazilError) -> None:
    call = CALLS[what]

    async def go() -> None:
        for writes in range(TRIES_MAX):
            folder = tmp_path / str(writes)
            async with opened(folder) as here:
                await begin(here)
                await here.broker._progress.flush()
                refusals = Refusals(here.meta, error)
                before = stored(here), state(here), here.storage.topics()
                with refusals.after(writes):
                    try:
                        await call(here)
                    except FrazilError as refused:
                        assert refused is error  # noqa: PT017 - of a call that may succeed
                        assert refusals.refused
                        is_done = False
                    else:
                        is_done = True
                if not is_done:
                    assert (stored(here), state(here), here.storage.topics()) == before, "it had an effect"
            async with opened(folder) as here:
                if not is_done:
                    await here.broker._progress.flush()
                    assert (stored(here), state(here), here.storage.topics()) == before, "it had one after a restart"
                    await call(here)
            if is_done and not refusals.refused:
                return
        raise AssertionError("it never succeeded")

    asyncio.run(asyncio.wait_for(go(), 100))


@run
async def test_a_topic_is_made_with_its_subject_or_not_at_all(tmp_path: Path) -> None:
    from frazil.core.clock import SystemClock
    from frazil.doors.danube_admin.topics import TopicCalls
    from frazil.node.broker_parts import BrokerParts
    from frazil.node.node import Node
    from frazil.registry.registry import SchemaRegistry
    from frazil.registry.topics import TopicSchemas

    async with opened(tmp_path) as here:
        registry = SchemaRegistry(here.meta, SystemClock())
        registry.register("tea", "string", b"string")
        schemas = TopicSchemas(here.meta, registry, SystemClock())
        node = Node(here.storage, has_broker=True)
        node.use(BrokerParts(here.broker, registry, schemas, mock.Mock(), mock.Mock(), mock.Mock()))
        calls = TopicCalls(node).calls()
        request = pb.PartitionedTopicRequest(base_name=NEW, partitions=3, schema_subject="tea", dispatch_strategy=1)
        before = stored(here)
        refusals = Refusals(here.meta, DiskFull("meta.db", "no room"))
        for writes in range(TRIES_MAX):
            with refusals.after(writes):
                try:
                    await calls["CreatePartitionedTopic"].answer(request)
                except DiskFull:
                    assert stored(here) == before
                    assert here.storage.topics() == []
                else:
                    break
        assert schemas.get(NEW).subject == "tea"
        assert len(here.storage.topics()) == 3


@run
async def test_what_of_a_refused_call_can_not_be_taken_back_is_no_part_of_a_later_topic(tmp_path: Path) -> None:
    """The log refuses after the records were stored, and then the store refuses to remove them."""
    async with opened(tmp_path) as here:
        with (
            mock.patch.object(here.storage, "create_topic", side_effect=DiskFull("segment", "no room")),
            mock.patch.object(here.meta, "delete_all", side_effect=DiskFull("meta.db", "no room")),
            pytest.raises(DiskFull, match="segment"),
        ):
            await here.broker.create_producer(NEW, "ghost", reliable=True)
        assert not here.broker.topics
    async with opened(tmp_path) as here:
        assert not here.broker.topics
        assert not here.storage.topics()
        await here.broker.create_producer(NEW, "q", reliable=True)
        assert list(here.broker.topics[TopicName.parse(NEW)].producers) == ["q"]
    async with opened(tmp_path) as here:
        assert list(here.broker.topics[TopicName.parse(NEW)].producers) == ["q"]


@run
async def test_records_of_a_topic_that_was_never_made_go_at_the_next_start(tmp_path: Path) -> None:
    async with opened(tmp_path) as here:
        with (
            mock.patch.object(here.storage, "create_topic", side_effect=DiskFull("segment", "no room")),
            mock.patch.object(here.meta, "delete_all", side_effect=DiskFull("meta.db", "no room")),
            pytest.raises(DiskFull, match="segment"),
        ):
            await here.broker.create_topics(TopicName.parse(NEW), 2, reliable=True, retention=None)
        assert len(stored(here)) == 3
    async with opened(tmp_path) as here:
        assert not stored(here)
        assert not here.broker.topics

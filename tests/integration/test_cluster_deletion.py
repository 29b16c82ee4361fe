"""A topic is deleted by its owner alone: one that was paused meanwhile removes nothing of what the next owner has."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from frazil.broker.store.records import Records
from frazil.broker.topics.shared_identities import SharedIdentities
from frazil.core.errors import FrazilError, TopicNotFound, TryLater
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.log.storage import Storage
from frazil.meta.opening import open_meta
from frazil.meta.topic_records import TopicIdentity, topic_record_key
from frazil.node.objects.deletion import DELETED
from frazil.node.objects.parts import ObjectParts
from parts.cluster_nodes import ClusterNode, cluster_node, cluster_nodes, cluster_settings
from parts.etcd import Etcd, etcd_server

TOPIC = "/default/orders"
NAME = TopicName.parse(TOPIC)


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_server(tmp_path / "etcd") as server:
        yield server


def run(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def runs(**given: object) -> None:
        asyncio.run(asyncio.wait_for(test(**given), 120))  # type: ignore[arg-type]

    return runs


def parts_of(one: ClusterNode) -> ObjectParts:
    parts = one.node.storage.attachment
    assert isinstance(parts, ObjectParts)
    return parts


def objects_in(folder: Path) -> int:
    return sum(1 for one in (folder / "objects").rglob("*") if one.is_file())


def failed_over(node: ClusterNode, to: str) -> None:
    """Give the topic to another broker, as a leader does that takes its owner for dead."""
    with contextlib.closing(open_meta(node.node.settings)) as meta:
        entry = meta.get(topic_record_key(NAME))
        assert entry is not None
        known = TopicIdentity.decode(entry.value)
        after = known.owned_by(NAME, to, known.epoch_of(NAME) + 1)
        assert meta.put_if(entry.key, after.encode(), entry.revision)


def notes_in(node: ClusterNode) -> list[str]:
    with contextlib.closing(open_meta(node.node.settings)) as meta:
        return [entry.key for entry in meta.list(DELETED)]


@pytest.mark.parametrize(
    "window", [(Records, "_forget_topic"), (SharedIdentities, "removed"), (SharedIdentities, "_take_out")]
)
@run
async def test_a_deletion_that_slept_removes_nothing_of_the_next_owner(
    tmp_path: Path, etcd: Etcd, window: tuple[Any, str]
) -> None:
    place, name = window
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, NAME, ack="object")
        await a.send(TOPIC, "one", "two")
        await a.subscribe(TOPIC)
        loop, real, left = asyncio.get_running_loop(), getattr(place, name), [1]

        def sleeping(*given: Any, **named: Any) -> Any:
            if left:
                left.pop()
                failed_over(a, "b")
                asyncio.run_coroutine_threadsafe(b.owns(TOPIC), loop).result(30)
            return real(*given, **named)

        with mock.patch.object(place, name, sleeping), pytest.raises(TryLater, match="another broker by now"):
            await a.node.delete_topic(LOCAL, NAME, force=True)
        assert not left
        assert await b.send(TOPIC, "three")
        if place is Records:
            assert b.broker.subscription(TOPIC, "s")
        await a.ownership.settled()  # type: ignore[attr-defined]
        assert [one for _, one in await b.payloads(TOPIC)] == ["one", "two", "three"]
        assert not parts_of(a).deleted.waiting
        before = objects_in(tmp_path)
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await b.owns(TOPIC)
        assert [one for _, one in await b.payloads(TOPIC)] == ["one", "two", "three"]
        assert objects_in(tmp_path) >= before
        async with asyncio.timeout(20):
            while notes_in(a):  # noqa: ASYNC110 - a thread removes it
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("ack", ["disk", "object"])
@run
async def test_a_deletion_that_a_crash_ended_is_finished_by_the_next_start(
    tmp_path: Path, etcd: Etcd, ack: str
) -> None:
    """The cluster has no such topic any more. Its objects would stay for good."""
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.node.create_topic(LOCAL, NAME, ack=ack)
        await a.send(TOPIC, "one")
        await asyncio.to_thread(parts_of(a).uploader.finish, a.node.storage.topic(TOPIC).log)
        await a.send(TOPIC, "two")
        killed = mock.patch.object(Storage, "delete_topic", side_effect=TryLater("the process is gone"))
        with killed, pytest.raises(TryLater, match="gone"):
            await a.node.delete_topic(LOCAL, NAME, force=True)
        assert objects_in(tmp_path)
        assert notes_in(a)
    async with cluster_node(settings) as a:
        async with asyncio.timeout(20):
            while notes_in(a):  # noqa: ASYNC110 - a thread removes it
                await asyncio.sleep(0.02)
        assert objects_in(tmp_path) == 0
        assert not (settings.log_folder / "default" / "orders").exists()
        assert not (settings.log_folder / "~lost").exists()
        with pytest.raises(TopicNotFound):
            await a.publish(TOPIC, "nowhere")
        await a.node.create_topic(LOCAL, NAME, ack=ack)
        assert await a.publish(TOPIC, "new") == [0]


@pytest.mark.parametrize("uploaded", [False, True])
@run
async def test_a_folder_whose_record_cannot_be_read_is_kept_at_a_start(
    tmp_path: Path, etcd: Etcd, uploaded: bool
) -> None:
    """As when a newer version has stored the record: the topic was not deleted."""
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.node.create_topic(LOCAL, NAME)
        assert await a.publish(TOPIC, "one") == [0]
        if uploaded:
            await asyncio.to_thread(parts_of(a).uploader.finish, a.node.storage.topic(TOPIC).log)
    with contextlib.closing(open_meta(settings)) as meta:
        record = meta.get(topic_record_key(NAME))
        assert record is not None
        meta.put_all({record.key: b'{"logs": [{"topic": "/default/orders", "from_a_later_version": 1}]}'})
        async with cluster_node(settings) as a:
            await a.ownership.settled()  # type: ignore[attr-defined]
            assert (settings.log_folder / "default" / "orders").exists()
            meta.put_all({record.key: record.value})
            await a.owns(TOPIC)
            assert await a.publish(TOPIC, "two") == [1]
            assert await a.payloads(TOPIC) == [(0, "one"), (1, "two")]


@run
async def test_a_deletion_that_failed_after_the_topic_went_stores_none_of_its_records_again(
    tmp_path: Path, etcd: Etcd
) -> None:
    """They would take the place of what the next owner has stored since."""
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, NAME, ack="object")
        await a.send(TOPIC, "one")
        await a.subscribe(TOPIC)
        loop = asyncio.get_running_loop()

        def failing(*_: Any, **__: Any) -> None:
            failed_over(a, "b")
            asyncio.run_coroutine_threadsafe(b.owns(TOPIC), loop).result(30)
            again = b.broker.topics[NAME]
            asyncio.run_coroutine_threadsafe(b.broker.delete_subscription(again, "s"), loop).result(30)
            raise FrazilError("the answer was lost")

        with mock.patch.object(Records, "_forget_topic", failing), pytest.raises(FrazilError, match="was lost"):
            await a.node.delete_topic(LOCAL, NAME, force=True)
        await a.ownership.settled()  # type: ignore[attr-defined]
        await asyncio.sleep(0.2)
        await b.ownership.move(NAME, "a")
        await a.owns(TOPIC)
        assert "s" not in a.broker.topics[NAME].subscriptions

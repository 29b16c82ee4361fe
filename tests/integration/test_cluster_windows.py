"""Moves of topics that fail, or meet rows, at the worst moment: nothing is lost, and no offset is given twice."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from frazil.core.errors import FrazilError, LogFailed, ObjectStoreUnavailable, TopicUnavailable, TryLater
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.log.topic_log import TopicLog
from frazil.meta import cluster_keys as keys
from frazil.meta.opening import open_meta
from frazil.meta.topic_records import topic_record_key
from frazil.node.member import node_host
from frazil.node.member.accepted_loss import AcceptedLoss
from frazil.node.member.node_host import NodeHost
from frazil.node.member.taken_names import read_taken, store_taken
from frazil.node.objects.parts import ObjectParts
from frazil.node.ownership.moves import requests
from frazil.objects.epoch import Epoch
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


@pytest.mark.parametrize("ack", ["disk", "object"])
@run
async def test_an_adoption_that_failed_is_forgotten_when_another_broker_gets_the_topic(
    tmp_path: Path, etcd: Etcd, ack: str
) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, NAME, ack=ack)
        assert await a.publish(TOPIC, "one") == [0]
        with mock.patch.object(b.node.storage, "adopt_topic", side_effect=TryLater("the disk is full")):
            with pytest.raises(TopicUnavailable):
                await a.ownership.move(NAME, "b")
            await b.ownership.move(NAME, "a", accept_loss=True)
            await a.owns(TOPIC)
        assert await a.publish(TOPIC, "two") == [1]
        await a.ownership.move(NAME, "b")
        await b.owns(TOPIC)
        assert await b.payloads(TOPIC) == [(0, "one"), (1, "two")]
        assert await b.publish(TOPIC, "three") == [2]


@run
async def test_rows_that_come_while_a_log_is_closed_go_along_at_the_level_memory(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, NAME, ack="memory")
        assert await a.publish(TOPIC, "one") == [0]
        uploader, left = parts_of(a).uploader, ["late"]
        finish = uploader.finish

        def interrupted(log: TopicLog, *seconds: float) -> int:
            end = finish(log, *seconds)
            while left and not a.broker.knows(NAME):  # it is not served any more
                a.node.storage.topic(TOPIC).publish(left.pop().encode())
            return end

        with mock.patch.object(uploader, "finish", side_effect=interrupted):
            await a.ownership.move(NAME, "b")
        await b.owns(TOPIC)
        assert await b.payloads(TOPIC) == [(0, "one"), (1, "late")]


@run
async def test_names_of_producers_that_are_stored_late_replace_none_of_the_next_owner(
    tmp_path: Path, etcd: Etcd
) -> None:
    """The owner after it would give one epoch of a name to two clients, and take rows of one for those of the other."""
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, NAME)
        topic, asleep, goes_on = a.node.storage.topic(TOPIC), threading.Event(), threading.Event()

        def sleeping(*given: Any) -> bool:
            if not asleep.is_set():
                asleep.set()
                assert goes_on.wait(60)
            return store_taken(*given)

        with mock.patch.object(node_host, "store_taken", sleeping):
            late = asyncio.create_task(asyncio.to_thread(topic.open_producer, "early"))
            assert await asyncio.to_thread(asleep.wait, 30)
            await a.ownership.move(NAME, "b")
            await b.owns(TOPIC)
            await asyncio.to_thread(b.node.storage.topic(TOPIC).open_producer, "till")
            goes_on.set()
            with pytest.raises(TryLater):
                await late
        with contextlib.closing(open_meta(a.node.settings)) as meta:
            taken = read_taken(meta, topic.log.log_id)
        assert taken is not None
        assert "till" in taken.epochs


@run
async def test_a_log_that_failed_to_sync_is_not_closed_and_opened_again_by_a_move(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, _b):
        await a.node.create_topic(LOCAL, NAME)
        assert await a.publish(TOPIC, "one") == [0]
        log = a.node.storage.topic(TOPIC).log
        log._fail("the sync failed")
        with pytest.raises(TopicUnavailable, match="the sync failed"):
            await a.ownership.move(NAME, "b")
        assert a.node.storage.topic(TOPIC).log is log
        with pytest.raises(LogFailed):
            log.sync()


@run
async def test_a_passing_fault_gives_up_no_folder_though_a_loss_was_accepted_before(tmp_path: Path, etcd: Etcd) -> None:
    """The broker died after the move that accepted the loss, before it removed the request; rows came in between."""
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.node.create_topic(LOCAL, NAME)
        assert await a.publish(TOPIC, "one") == [0]
    move = keys.MoveRecord("a", "a-broker-that-is-gone", True)
    with contextlib.closing(open_meta(settings)) as meta:
        meta.put_all({keys.topic_key(keys.MOVES, NAME): move.encode()})
    begin, left = NodeHost._begin, [ObjectStoreUnavailable("the store", "it is away")]

    def failing_once(host: NodeHost, *place: Any) -> Epoch:
        if left:
            raise left.pop()
        return begin(host, *place)

    with mock.patch.object(NodeHost, "_begin", failing_once):
        async with cluster_node(settings) as a:
            await a.owns(TOPIC)
            assert await a.payloads(TOPIC) == [(0, "one")]
            assert await a.publish(TOPIC, "two") == [1]
    assert not left
    assert not (settings.log_folder / "~lost").exists()


@pytest.mark.parametrize(
    ("while_it_runs", "uploads", "than"),
    [
        (False, True, "when it was served last"),
        (False, False, "when it was served last"),
        (True, True, "what it has uploaded"),
    ],
)
@run
async def test_an_older_folder_is_not_taken_for_the_disk_of_a_topic(
    tmp_path: Path, etcd: Etcd, while_it_runs: bool, uploads: bool, than: str
) -> None:
    """Acknowledged rows that it lacks would be lost, and their offsets given again."""
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.node.create_topic(LOCAL, NAME)
        assert await a.publish(TOPIC, "one") == [0]
    if not while_it_runs:
        shutil.copytree(tmp_path / "a", tmp_path / "older")
    async with cluster_node(settings) as a:
        await a.owns(TOPIC)
        if while_it_runs:
            shutil.copytree(tmp_path / "a", tmp_path / "older")
        assert await a.publish(TOPIC, "two") == [1]
        if uploads:
            await asyncio.to_thread(parts_of(a).uploader.finish, a.node.storage.topic(TOPIC).log)
        assert await a.publish(TOPIC, "three") == [2]
    (tmp_path / "a").rename(tmp_path / "newest")
    (tmp_path / "older").rename(tmp_path / "a")
    async with cluster_node(settings) as a:
        await a.ownership.settled()  # type: ignore[attr-defined]
        with pytest.raises(TopicUnavailable, match=rf"which is older than {than}: restore it"):
            await a.publish(TOPIC, "four")
        assert (settings.log_folder / "default" / "orders").exists()
        assert a.node.storage.names() == set()
    (tmp_path / "a").rename(tmp_path / "older")
    (tmp_path / "newest").rename(tmp_path / "a")
    async with cluster_node(settings) as a:
        await a.owns(TOPIC)
        assert await a.payloads(TOPIC) == [(0, "one"), (1, "two"), (2, "three")]
        assert await a.publish(TOPIC, "four") == [3]


@run
async def test_files_that_may_lose_rows_go_on_behind_the_objects(tmp_path: Path, etcd: Etcd) -> None:
    """A power cut may take the last rows of the level `memory`, also those that were uploaded."""
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.node.create_topic(LOCAL, NAME, ack="memory")
        assert await a.publish(TOPIC, "one") == [0]
        await asyncio.to_thread(a.node.storage.topic(TOPIC).log.sync)
        shutil.copytree(tmp_path / "a", tmp_path / "left")
        assert await a.publish(TOPIC, "two") == [1]
        await asyncio.to_thread(parts_of(a).uploader.finish, a.node.storage.topic(TOPIC).log)
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "left").rename(tmp_path / "a")
    async with cluster_node(settings) as a:
        await a.owns(TOPIC)
        assert await a.payloads(TOPIC) == [(0, "one"), (1, "two")]
        assert await a.publish(TOPIC, "three") == [2]


@run
async def test_a_topic_goes_on_behind_its_objects_if_the_loss_is_accepted_of_what_an_older_folder_lacks(
    tmp_path: Path, etcd: Etcd
) -> None:
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.node.create_topic(LOCAL, NAME)
        assert await a.publish(TOPIC, "one") == [0]
    shutil.copytree(tmp_path / "a", tmp_path / "older")
    async with cluster_node(settings) as a:
        await a.owns(TOPIC)
        assert await a.publish(TOPIC, "two") == [1]
        await asyncio.to_thread(parts_of(a).uploader.finish, a.node.storage.topic(TOPIC).log)
    shutil.rmtree(tmp_path / "a")
    (tmp_path / "older").rename(tmp_path / "a")
    async with cluster_node(settings) as a:
        await a.ownership.settled()  # type: ignore[attr-defined]
        await a.ownership.move(NAME, accept_loss=True)
        assert await a.payloads(TOPIC) == [(0, "one"), (1, "two")]
        assert await a.publish(TOPIC, "three") == [2]


@run
async def test_an_accepted_loss_stays_accepted_if_the_caller_gives_up_before_the_topic_is_open(
    tmp_path: Path, etcd: Etcd
) -> None:
    """Otherwise the topic would go on below the end of its table. However long it fails, it has one new epoch."""
    losses: list[AcceptedLoss | None] = []
    accepted_loss = NodeHost._accepted_loss

    def noted(host: NodeHost, *place: Any) -> AcceptedLoss | None:
        losses.append(accepted_loss(host, *place))
        return losses[-1]

    async with cluster_node(cluster_settings(tmp_path, "b", etcd.endpoint)) as b:
        async with cluster_node(cluster_settings(tmp_path, "a", etcd.endpoint)) as a:
            await a.send(TOPIC, "one", "two", "three")
        away = ObjectStoreUnavailable("the store", "it is away")
        view = b.ownership._view  # type: ignore[attr-defined]
        with mock.patch.object(NodeHost, "_accepted_loss", noted):
            gives_up = mock.patch.object(requests, "MOVE_MS_MAX", 5_000)
            with mock.patch.object(NodeHost, "_begin", side_effect=away), gives_up:
                with pytest.raises(TopicUnavailable, match="does not serve it after"):
                    await b.ownership.move(NAME, "b", accept_loss=True)
                assert view.topic(NAME).owner == "b"
                assert view.topic(NAME).epoch <= 3
                asked = b.ownership._requests  # type: ignore[attr-defined]
                with pytest.raises(TopicUnavailable, match="another move of it is under way"):
                    await asked._request(NAME, keys.MoveRecord("c", "b"))
                await asked._request(NAME, keys.MoveRecord("b", "b", True))
            await b.owns(TOPIC)
        assert losses
        assert None not in losses
        assert await b.publish(TOPIC, "new") == [0]
        async with asyncio.timeout(30):
            while view.move(NAME) is not None:  # noqa: ASYNC110 - the watch tells it
                await asyncio.sleep(0.02)


@pytest.mark.parametrize("fails", [False, True])
@run
async def test_a_call_that_was_let_through_does_not_make_a_topic_known_that_is_given_away(
    tmp_path: Path, etcd: Etcd, fails: bool
) -> None:
    """The topic would be served without its subscriptions if it stays, and by a closed log when it comes back."""
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.send(TOPIC, "one")
        consumer = await a.subscribe(TOPIC)
        loop, uploader, late = asyncio.get_running_loop(), parts_of(a).uploader, list[Any]()
        finish = uploader.finish

        def interrupted(log: TopicLog, *seconds: float) -> int:
            if a.broker.knows(NAME):
                return finish(log, *seconds)  # it is still served
            if not late:
                late.append(asyncio.run_coroutine_threadsafe(a.broker.create_producer(TOPIC, "q", reliable=True), loop))
                with contextlib.suppress(FrazilError, TimeoutError):
                    late[0].result(1)
            if fails:
                raise ObjectStoreUnavailable("the store", "it is away")
            return finish(log, *seconds)

        told = pytest.raises(TopicUnavailable) if fails else contextlib.nullcontext()
        with mock.patch.object(uploader, "finish", side_effect=interrupted), told:
            await a.ownership.move(NAME, "b")
        with contextlib.suppress(TryLater):
            await asyncio.wrap_future(late[0])
        if not fails:
            assert not a.broker.knows(NAME)
            await b.ownership.move(NAME, "a")
        await a.owns(TOPIC)
        assert await a.send(TOPIC, "two")
        assert await a.take(consumer, 1) == [(1, "two")]


@pytest.mark.parametrize("moves", [True, False])
@run
async def test_a_client_that_asks_while_a_topic_is_opened_does_not_hide_its_subscriptions(
    tmp_path: Path, etcd: Etcd, moves: bool
) -> None:
    """Stock clients ask any broker for the partitions of a topic. A subscription made anew would skip messages."""
    loop, asked = asyncio.get_running_loop(), list[Any]()
    attach, settings = NodeHost._attach, [cluster_settings(tmp_path, one, etcd.endpoint) for one in "ab"]

    def interrupted(host: NodeHost, log: TopicLog, epoch: Epoch | None) -> None:
        attach(host, log, epoch)
        asked.append(asyncio.run_coroutine_threadsafe(host.broker.discover(NAME), loop))
        with contextlib.suppress(FrazilError, TimeoutError):
            asked[-1].result(1)

    async with cluster_node(settings[0]) as a:
        await a.send(TOPIC, "one")
        consumer = await a.subscribe(TOPIC)
        await a.send(TOPIC, "two")
        if moves:
            async with cluster_node(settings[1]) as b:
                with mock.patch.object(NodeHost, "_attach", interrupted):
                    await a.ownership.move(NAME, "b")
                assert await b.take(consumer, 1) == [(1, "two")]
    if not moves:
        with mock.patch.object(NodeHost, "_attach", interrupted):
            async with cluster_node(settings[0]) as a:
                await a.owns(TOPIC)
                assert await a.take(consumer, 1) == [(1, "two")]
    assert asked


@pytest.mark.parametrize("fails", [False, True])
@run
async def test_a_topic_is_served_while_its_rows_are_uploaded_for_a_move(
    tmp_path: Path, etcd: Etcd, fails: bool
) -> None:
    """A store that is slow or away must not keep clients from a topic that its disk acknowledges."""
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, NAME)
        assert await a.publish(TOPIC, "one") == [0]
        begun, goes_on = asyncio.Event(), threading.Event()
        loop, finish = asyncio.get_running_loop(), parts_of(a).uploader.finish

        def slow(log: TopicLog, *seconds: float) -> int:
            loop.call_soon_threadsafe(begun.set)
            assert goes_on.wait(30)
            if fails:
                raise ObjectStoreUnavailable("the store", "it is away")
            return finish(log, *seconds)

        with mock.patch.object(parts_of(a).uploader, "finish", side_effect=slow):
            move = asyncio.create_task(b.ownership.move(NAME, "b"))
            await begun.wait()
            assert await a.publish(TOPIC, "two") == [1]
            goes_on.set()
            with pytest.raises(TopicUnavailable, match="it is away") if fails else contextlib.nullcontext():
                await move
        left = a if fails else b
        assert await left.publish(TOPIC, "three") == [2]
        assert [one for _, one in await left.payloads(TOPIC)] == ["one", "two", "three"]


@pytest.mark.parametrize("ack", ["disk", "object"])
@run
async def test_topics_that_a_restored_etcd_does_not_know_go_on_at_their_brokers(
    tmp_path: Path, etcd: Etcd, ack: str
) -> None:
    """They were created after the backup. Without a record, their folders would be put away at the next start."""
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, NAME, ack=ack)
        await b.ownership.move(NAME, "b")
        await b.ownership.move(NAME, "a")
        await a.owns(TOPIC)
        assert await a.publish(TOPIC, "one") == [0]
        view = a.ownership._view  # type: ignore[attr-defined]
        with contextlib.closing(open_meta(settings)) as meta:
            meta.delete_all([topic_record_key(NAME), keys.topic_key(keys.SERVING, NAME)])
        async with asyncio.timeout(30):
            while view.topic(NAME) is not None:  # noqa: ASYNC110 - the watch tells it
                await asyncio.sleep(0.02)
        for one in (b, a):
            await one.broker.store_again()
        await a.owns(TOPIC)
        assert view.topic(NAME).epoch == 3
        assert await a.publish(TOPIC, "two") == [1]
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.owns(TOPIC)
        assert await a.payloads(TOPIC) == [(0, "one"), (1, "two")]
        await a.node.delete_topic(LOCAL, NAME, force=True)
        await a.broker.store_again()
        assert a.node.storage.names() == set()

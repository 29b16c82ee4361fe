"""What retention has removed of a topic's objects stays known when another broker gets the topic."""

from __future__ import annotations

import asyncio
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from frazil.core.errors import TryLater
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.principal import LOCAL
from frazil.meta.opening import open_meta
from frazil.meta.topic_records import TopicIdentity, topic_record_key
from frazil.node.objects.parts import ObjectParts
from frazil.node.verify.proofs import prove
from frazil.node.verify.verify import TopicProof
from parts.cluster_nodes import ClusterNode, cluster_node, cluster_nodes, cluster_settings
from parts.etcd import etcd_server

TOPIC = "/default/orders"
NAME = TopicName.parse(TOPIC)


def parts_of(one: ClusterNode) -> ObjectParts:
    parts = one.node.storage.attachment
    assert isinstance(parts, ObjectParts)
    return parts


async def remove_old(one: ClusterNode) -> int:
    """Let retention of objects do its work, and return where the rows begin."""
    log, parts = one.node.storage.topic(TOPIC, create=False).log, parts_of(one)
    await asyncio.to_thread(parts.retention.enforce, log)
    return (await asyncio.to_thread(parts.objects.of(log.log_id).load)).start


async def proof_at(one: ClusterNode) -> TopicProof:
    (proof,) = await asyncio.to_thread(prove, one.node.settings, TOPIC, lambda _: lambda _: None)
    return proof


@pytest.mark.parametrize("ack", ["disk", "object"])
def test_rows_that_retention_removed_are_accounted_for_at_the_next_broker(tmp_path: Path, ack: str) -> None:
    limits = {"pipeline": {"enabled": False}}

    async def story() -> None:
        with etcd_server(tmp_path / "etcd") as etcd:
            async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b", **limits) as (a, b):
                for one in (a, b):
                    rules = one.node.settings.objects.model_copy(update={"bytes": 1})
                    parts_of(one).retention._settings = rules
                await a.node.create_topic(LOCAL, NAME, ack=ack)
                end = 0
                for giving, taking in ((a, b), (b, a), (a, b)):
                    for number in range(3):
                        assert await giving.publish(TOPIC, str(number)) == [end]
                        end += 1
                    await giving.ownership.move(NAME, taking.id)
                    await taking.owns(TOPIC)
                    first = await remove_old(taking)
                await b.ownership.move(NAME, "a")
                await a.owns(TOPIC)
                assert 0 < first < end
                proof = await proof_at(a)
                assert proof.problems == []
                assert proof.dropped == [OffsetRange(0, first)]
                assert [offset for offset, _ in await a.payloads(TOPIC)] == list(range(first, end))

    asyncio.run(asyncio.wait_for(story(), 120))


def test_rows_whose_loss_was_accepted_stay_when_later_objects_are_removed(tmp_path: Path) -> None:
    """Their offsets are below those that the store has by now, and other rows had them."""

    async def story() -> None:
        with etcd_server(tmp_path / "etcd") as etcd:
            async with cluster_nodes(tmp_path, etcd.endpoint, "b", "c") as (b, c):
                settings = cluster_settings(tmp_path, "a", etcd.endpoint)
                async with cluster_node(settings) as a:
                    await a.node.create_topic(LOCAL, NAME)
                    assert await a.publish(TOPIC, "only", "on", "its disk") == [0, 1, 2]
                await b.ownership.move(NAME, "b", accept_loss=True)
                await b.owns(TOPIC)
                assert await b.publish(TOPIC, *map(str, range(6))) == list(range(6))
                await b.ownership.move(NAME, "c")
                await c.owns(TOPIC)
                assert await c.publish(TOPIC, "6") == [6]
                await asyncio.to_thread(parts_of(c).uploader.finish, c.node.storage.topic(TOPIC).log)
                parts_of(c).retention._settings = c.node.settings.objects.model_copy(update={"bytes": 1})
                assert await remove_old(c) == 6
                async with cluster_node(settings) as a:
                    await a.ownership.settled()  # type: ignore[attr-defined]
                    (aside,) = (settings.log_folder / "~lost" / "default" / "orders").iterdir()
                    assert any(b"its disk" in one.read_bytes() for one in aside.glob("*.wal"))

    asyncio.run(asyncio.wait_for(story(), 120))


@pytest.mark.parametrize("sleeps_at", ["note_removed", "remove", "delete"])
def test_an_owner_that_sleeps_while_it_removes_objects_harms_no_read_of_the_next_one(
    tmp_path: Path, sleeps_at: str
) -> None:
    """Before it has noted what goes, nothing goes any more. Later, its successor knows what goes."""

    async def story() -> None:
        with etcd_server(tmp_path / "etcd") as etcd:
            async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
                await b.node.create_topic(LOCAL, NAME, ack="object")
                for number in range(6):
                    if number == 3:  # the files of `a` begin here, so objects below may go
                        await b.ownership.move(NAME, "a")
                        await a.owns(TOPIC)
                    assert await (b if number < 3 else a).publish(TOPIC, str(number)) == [number]
                first = await removed_while_asleep(a, b, sleeps_at)
                assert [offset for offset, _ in await b.payloads(TOPIC)] == list(range(first, 6))
                assert (first == 0) is (sleeps_at == "note_removed")
                proof = await proof_at(b)
                assert proof.problems == []
                assert proof.dropped == ([OffsetRange(0, first)] if first else [])

    asyncio.run(asyncio.wait_for(story(), 120))


async def removed_while_asleep(a: ClusterNode, b: ClusterNode, sleeps_at: str) -> int:
    """Give the topic to `b` while `a` removes objects; returns where the rows begin at `b` before `a` goes on."""
    parts, loop, found = parts_of(a), asyncio.get_running_loop(), list[int]()
    parts.retention._settings = a.node.settings.objects.model_copy(update={"bytes": 1})
    place: Any = parts.store if sleeps_at == "delete" else parts.objects.manifests
    real, log = getattr(place, sleeps_at), a.node.storage.topic(TOPIC, create=False).log

    def sleeping(*given: Any, **named: Any) -> Any:
        if not found:
            fail_over(a, "b")
            asyncio.run_coroutine_threadsafe(b.owns(TOPIC), loop).result(30)
            found.append(parts_of(b).objects.of(log.log_id).load().start)
        return real(*given, **named)

    refused = pytest.raises(TryLater, match="changed meanwhile") if sleeps_at == "note_removed" else nullcontext()
    with mock.patch.object(place, sleeps_at, sleeping), refused:
        await asyncio.to_thread(parts.retention.enforce, log)
    assert found, "nothing was removed"
    return found[0]


def fail_over(node: ClusterNode, to: str) -> None:
    """Give the topic to another broker, as a leader does that takes its owner for dead."""
    with closing(open_meta(node.node.settings)) as meta:
        entry = meta.get(topic_record_key(NAME))
        assert entry is not None
        known = TopicIdentity.decode(entry.value)
        after = known.owned_by(NAME, to, known.epoch_of(NAME) + 1)
        assert meta.put_if(entry.key, after.encode(), entry.revision)

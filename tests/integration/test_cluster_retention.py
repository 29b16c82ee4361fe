"""What retention has removed of a topic's objects stays known when another broker gets the topic."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.principal import LOCAL
from frazil.node.objects.parts import ObjectParts
from frazil.node.verify.proofs import prove
from frazil.node.verify.verify import TopicProof
from parts.cluster_nodes import ClusterNode, cluster_nodes
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

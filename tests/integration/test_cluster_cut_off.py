"""A broker that is cut off from etcd: others take its topics over, and it says so, though it cannot read any record."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from frazil.core.cluster import BrokerState, flight_address
from frazil.core.errors import NotOwner, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from parts.cluster_nodes import WAIT_S, ClusterNode, cluster_node, cluster_settings
from parts.cut_proxy import CutProxy, cut_proxy
from parts.etcd import etcd_server

TOPIC = "/default/orders"
NAME = TopicName.parse(TOPIC)


@contextlib.asynccontextmanager
async def two_nodes(folder: Path) -> AsyncIterator[tuple[ClusterNode, CutProxy, ClusterNode]]:
    """The first one reaches etcd through a proxy that can be cut."""
    with etcd_server(folder / "etcd") as etcd, cut_proxy(etcd.port) as proxy:
        first = cluster_settings(folder, "a", f"http://127.0.0.1:{proxy.port}")
        async with cluster_node(first) as a, cluster_node(cluster_settings(folder, "b", etcd.endpoint)) as b:
            yield a, proxy, b


async def owner_at(node: ClusterNode) -> str:
    """Wait until the node says that another broker owns the topic, and return its name. Doors end its streams then."""
    for _ in range(WAIT_S * 20):
        with contextlib.suppress(TopicUnavailable):  # it does not say yet who has the topic
            try:
                node.ownership.must_own(NAME)
            except NotOwner as error:
                return str(error.fields["broker_id"] if flight_address(error.fields["addresses"]) else None)
        await asyncio.sleep(0.05)
    raise AssertionError(f"{node.id} does not say who owns the topic")


async def is_gone(broker_id: str, at: ClusterNode, *, gone: bool) -> None:
    """Wait until a broker counts as gone at another one, or is back."""
    for _ in range(WAIT_S * 20):
        present = [one.broker_id for one in at.ownership.brokers() if one.state is not BrokerState.GONE]
        if (broker_id not in present) is gone:
            return
        await asyncio.sleep(0.05)
    raise AssertionError(f"{broker_id} is not gone" if gone else f"{broker_id} is not back")


def test_a_broker_with_readers_alone_notices_that_its_topic_was_taken_over(tmp_path: Path) -> None:
    """No put is refused, as nobody publishes there; its consumer would wait for messages that come elsewhere."""

    async def story() -> None:
        async with two_nodes(tmp_path) as (a, proxy, b):
            await a.node.create_topic(LOCAL, NAME, ack="object")
            consumer = await a.subscribe(TOPIC)
            assert await a.publish(TOPIC, "one") == [0]
            assert await a.take(consumer, 1) == [(0, "one")]
            proxy.refuse()
            await b.owns(TOPIC)
            assert await owner_at(a) == "b"
            assert await b.publish(TOPIC, "two") == [1]
            proxy.heal()
            assert await owner_at(a) == "b"
            await is_gone("a", b, gone=False)
            await b.ownership.move(NAME, "a")
            await a.owns(TOPIC)
            assert await a.payloads(TOPIC) == [(0, "one"), (1, "two")]

    asyncio.run(asyncio.wait_for(story(), 120))


@pytest.mark.parametrize("ack", ["disk", "memory"])
def test_a_topic_that_waits_for_its_disk_is_served_by_a_broker_that_is_cut_off(tmp_path: Path, ack: str) -> None:
    async def story() -> None:
        async with two_nodes(tmp_path) as (a, proxy, b):
            await a.node.create_topic(LOCAL, NAME, ack=ack)
            assert await a.publish(TOPIC, "one") == [0]
            proxy.refuse()
            await is_gone("a", b, gone=True)
            assert await a.publish(TOPIC, "two") == [1]
            proxy.heal()
            assert await a.payloads(TOPIC) == [(0, "one"), (1, "two")]

    asyncio.run(asyncio.wait_for(story(), 120))

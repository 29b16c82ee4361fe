"""Nodes of one cluster in this process, over a real etcd and a folder of objects. Their doors stay closed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from frazil.broker.delivery.assignment import Kind
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.cluster import BrokerState
from frazil.core.errors import TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.core.rows import Origin
from frazil.core.settings import Settings, make_settings
from frazil.node.node import Node, open_node
from frazil.node.ownership.ownership import Ownership

WAIT_S = 30


def cluster_settings(
    folder: Path, broker_id: str, endpoint: str, prefix: str = "/cluster-test", **others: Any
) -> Settings:
    return make_settings(
        {
            **others,
            "data": str(folder / broker_id),
            "metadata": {"type": "etcd", "endpoints": endpoint, "prefix": prefix},
            "objects": {"enabled": True, "store": {"type": "local", "path": str(folder / "objects")}},
            "cluster": {"enabled": True, "broker_id": broker_id, "lease_ms": 2_000, "drain_ms_max": 0},
            "pipeline": {"enabled": False},
            "broker": {"progress_flush_ms": 10, "redelivery_delay_ms": 20, "redelivery_delay_ms_max": 100},
        }
    )


class ClusterNode:
    def __init__(self, node: Node) -> None:
        self.node = node
        self.broker = node.broker(LOCAL)

    @property
    def ownership(self) -> Ownership:
        return self.node.ownership(LOCAL)

    @property
    def id(self) -> str:
        return self.ownership.broker_id

    async def publish(self, topic: str, *payloads: str) -> list[int]:
        publisher = await asyncio.to_thread(self.node.publisher, LOCAL, topic)
        return [(await publisher.publish([payload])).start for payload in payloads]

    async def send(self, topic: str, *payloads: str, producer: str = "p") -> int:
        made = await self.broker.create_producer(topic, producer, reliable=True)
        for payload in payloads:
            await made.topic.publish(OutgoingMessage(payload.encode(), None, {}, Origin(producer, 1)))
        return made.id

    async def subscribe(self, topic: str, name: str = "s", kind: Kind = Kind.EXCLUSIVE) -> int:
        return await self.node.subscribe(LOCAL, topic, name, kind, "c")

    async def take(self, consumer: int, count: int) -> list[tuple[int, str]]:
        stream = self.broker.connect(consumer)[3]
        found = []
        for _ in range(count):
            entry = await asyncio.wait_for(stream.take(), WAIT_S)
            assert entry is not None
            found.append((entry.offset, entry.message.payload.decode()))
        return found

    async def payloads(self, topic: str) -> list[tuple[int, str]]:
        def read() -> list[tuple[int, str]]:
            with contextlib.closing(self.node.read(LOCAL, topic)) as reader:
                rows = [(batch.column("_offset").to_pylist(), batch.column("_payload").to_pylist()) for batch in reader]
            return [(at, one.decode()) for offsets, found in rows for at, one in zip(offsets, found, strict=True)]

        return await asyncio.to_thread(read)

    async def knows(self, brokers: Sequence[str]) -> None:
        """Wait until it has seen the sessions of these brokers."""
        for _ in range(WAIT_S * 50):
            if {one.broker_id for one in self.ownership.brokers() if one.state is not BrokerState.GONE} >= set(brokers):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{self.id} never saw {brokers}")

    async def hears_of(self, topic: str) -> None:
        """Wait until it has seen who owns the topic."""
        name = TopicName.parse(topic)
        for _ in range(WAIT_S * 50):
            if self.ownership.owner_of(name) is not None:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{self.id} never heard of {topic}")

    async def owns(self, topic: str) -> None:
        """Wait until it serves the topic."""
        name = TopicName.parse(topic)
        for _ in range(WAIT_S * 50):
            if self._serves(name):
                return
            await asyncio.sleep(0.02)
        raise AssertionError(f"{self.id} never served {topic}")

    def _serves(self, name: TopicName) -> bool:
        owner = self.ownership.owner_of(name)
        return owner is not None and owner.broker_id == self.id


@asynccontextmanager
async def cluster_node(settings: Settings) -> AsyncIterator[ClusterNode]:
    node = open_node(settings, serves=True)
    try:
        node.addresses["flight"] = f"grpc://{settings.cluster.broker_id}.example:6660"
        await node.start()
        try:
            yield ClusterNode(node)
        finally:
            await node.stop()
    finally:
        await asyncio.to_thread(node.close)


@asynccontextmanager
async def cluster_nodes(folder: Path, endpoint: str, *ids: str, **others: Any) -> AsyncIterator[list[ClusterNode]]:
    """`others` are sections of the settings."""
    settings = [cluster_settings(folder, one, endpoint, **others) for one in ids]
    async with contextlib.AsyncExitStack() as stack:
        nodes = [await stack.enter_async_context(cluster_node(one)) for one in settings]
        for node in nodes:
            await node.knows(ids)
        yield nodes


async def until_available(call: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a call as clients do, while its topic is not available yet."""
    for _ in range(WAIT_S * 50):
        with contextlib.suppress(TopicUnavailable):
            await call()
            return
        await asyncio.sleep(0.02)
    raise AssertionError("the topic is still not available")

"""Brokers of one cluster in this process: each has its own Node and doors, all over one log that moves nowhere.

Which broker owns a topic is a table in memory. A move changes only the table, so a topic goes on at the next offset, as
after a real move. `Brokers` runs everything on an event loop in a thread, so that blocking clients can be tested.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Collection, Coroutine, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import uvicorn

from frazil.core.cluster import Balance, BrokerInfo, BrokerState, DrainReport, MoveCounts, PlannedMove
from frazil.core.errors import BrokerNotFound, LossNotAccepted, NotOwner, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.doors.danube.door import DanubeDoor
from frazil.doors.danube_admin import AdminDoor
from frazil.doors.flight.door import FlightDoor
from frazil.doors.http.door import make_app
from frazil.log.storage import Storage
from frazil.node.node import Node, open_node
from frazil.node.request_ids import RequestIds

Answer = TypeVar("Answer")


class Cluster:
    """The table of brokers and owners. Tests change it; every `FakeOwnership` reads it."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.addresses: dict[str, Mapping[str, str]] = {}
        self.states: dict[str, BrokerState] = {}
        self.owners: dict[TopicName, str] = {}
        self.unavailable: dict[TopicName, str] = {}
        self.cut_off: dict[str, str] = {}
        """Brokers that hear of no change, each with what it says of all topics."""
        self.needs_loss: set[TopicName] = set()
        """Topics whose owner is gone, with rows that were not uploaded."""
        self.failing: dict[TopicName, str] = {}
        """Why a topic cannot be moved."""
        self.moves: list[tuple[str, str, bool]] = []
        self.counts: dict[str, MoveCounts] = {}

    def give(self, topic: str, broker_id: str) -> None:
        self.owners[TopicName.parse(topic)] = broker_id

    def info(self, broker_id: str) -> BrokerInfo:
        count = sum(owner == broker_id for owner in self.owners.values())
        state = self.states.get(broker_id, BrokerState.ACTIVE)
        return BrokerInfo(broker_id, dict(self.addresses[broker_id]), state, topics=count, load=float(count))


class FakeOwnership:
    """See `Ownership`."""

    is_clustered = True

    def __init__(self, cluster: Cluster, broker_id: str) -> None:
        self._cluster = cluster
        self.broker_id = broker_id

    def owner_of(self, topic: TopicName) -> BrokerInfo | None:
        owner = self._cluster.owners.get(topic)
        return None if owner is None or topic in self._cluster.unavailable else self._cluster.info(owner)

    def must_own(self, topic: TopicName) -> None:
        reason, owner = self._cluster.unavailable.get(topic), self._cluster.owners.get(topic)
        reason = self._cluster.cut_off.get(self.broker_id, reason)
        if reason is not None:
            raise TopicUnavailable(str(topic), reason)
        if owner is None:  # made by a call that came here
            if topic in self._cluster.storage.names():
                self._cluster.owners[topic] = self.broker_id
        elif owner != self.broker_id:
            raise NotOwner(str(topic), owner, self._cluster.addresses[owner])

    def topics(self) -> Collection[TopicName]:
        return self._cluster.owners.keys()

    def family(self, name: TopicName) -> Collection[TopicName]:
        base = name.partition_of()[0]
        return {one for one in self._cluster.owners if one.partition_of()[0] == base}

    def refresh(self, topic: TopicName) -> None:
        pass

    def brokers(self) -> list[BrokerInfo]:
        return [self._cluster.info(one) for one in sorted(self._cluster.addresses)]

    def leader(self) -> str | None:
        return min(self._cluster.addresses)

    def elsewhere(self, name: TopicName) -> Mapping[TopicName, str | None]:
        return {one: None for one in self.family(name) if self._cluster.owners[one] != self.broker_id}

    def problems(self) -> Mapping[TopicName, str]:
        return {}

    @property
    def counts(self) -> MoveCounts:
        return self._cluster.counts.get(self.broker_id, MoveCounts())

    def balance(self) -> Balance:
        return Balance(tuple(self.brokers()))

    async def move(self, topic: TopicName, to: str | None = None, *, accept_loss: bool = False) -> None:
        cluster = self._cluster
        if topic in cluster.failing:
            raise TopicUnavailable(str(topic), cluster.failing[topic])
        if topic in cluster.needs_loss and not accept_loss:
            raise LossNotAccepted(str(topic), cluster.owners[topic])
        before = cluster.owners.get(topic)
        target = to or self._least_loaded(before)
        if before is not None:
            cluster.counts.setdefault(before, MoveCounts()).given += 1
        cluster.counts.setdefault(target, MoveCounts()).taken += 1
        cluster.moves.append((str(topic), target, accept_loss))
        cluster.owners[topic] = target
        cluster.unavailable.pop(topic, None)
        cluster.needs_loss.discard(topic)

    async def drain(self, broker_id: str, *, timeout_ms: int | None = None, parallel_max: int = 4) -> DrainReport:
        self._known(broker_id)
        self._cluster.states[broker_id] = BrokerState.DRAINING
        mine = sorted(topic for topic, owner in self._cluster.owners.items() if owner == broker_id)
        moved, failed = 0, {}
        for topic in mine[: parallel_max if timeout_ms is not None else None]:
            try:
                await self.move(topic)
                moved += 1
            except TopicUnavailable as error:
                failed[str(topic)] = error.message
        return DrainReport(broker_id, len(mine), moved, failed)

    async def activate(self, broker_id: str) -> None:
        self._known(broker_id)
        self._cluster.states[broker_id] = BrokerState.ACTIVE

    async def rebalance(self, *, dry_run: bool = False, moves_max: int | None = None) -> list[PlannedMove]:
        planned: list[PlannedMove] = []
        counts = {one.broker_id: one.topics for one in self.brokers() if one.state is BrokerState.ACTIVE}
        for topic, owner in sorted(self._cluster.owners.items()):
            least = min(counts, key=lambda one: (counts[one], one))
            if len(planned) == moves_max or counts.get(owner, 0) <= counts[least] + 1:
                continue
            planned.append(PlannedMove(topic, owner, least, 1.0, f"{owner} has more load than the mean"))
            counts[owner], counts[least] = counts[owner] - 1, counts[least] + 1
        for one in planned if not dry_run else ():
            await self.move(one.topic, one.to_broker)
        return planned

    def _known(self, broker_id: str) -> None:
        if broker_id not in self._cluster.addresses:
            raise BrokerNotFound(broker_id)

    def _least_loaded(self, but: str | None) -> str:
        there = [one for one in self.brokers() if one.state is BrokerState.ACTIVE and one.broker_id != but]
        return min(there, key=lambda one: (one.topics, one.broker_id)).broker_id


class BrokerHere:
    """A Node with all its doors."""

    def __init__(self, node: Node, cluster: Cluster, broker_id: str) -> None:
        self.node = node
        self.broker_id = broker_id
        self._cluster = cluster
        node._ownership = FakeOwnership(cluster, broker_id)
        self._flight = FlightDoor(node, node.settings.flight)
        self._danube: DanubeDoor | None = None
        self._admin: AdminDoor | None = None
        self._http: uvicorn.Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._danube, self._admin = DanubeDoor(self.node), AdminDoor(self.node)
        for door in (self._danube, self._admin, self._flight):
            await door.start()
        listening = socket.create_server(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        config = uvicorn.Config(RequestIds(make_app(self.node)), log_config=None, lifespan="off")
        self._http = uvicorn.Server(config)
        self._http.capture_signals = contextlib.nullcontext  # type: ignore[method-assign] # they are pytest's
        self._serving = asyncio.create_task(self._http.serve([listening]))
        self.node.addresses |= {
            "http": f"http://127.0.0.1:{port}",
            "flight": self._flight.address,
            "advertised": self._flight.advertised,
            "danube": self._danube.url,
            "admin": self._admin.url,
        }
        self._cluster.addresses[self.broker_id] = self.node.addresses

    async def stop(self) -> None:
        if self._http is None:
            return
        self._http.should_exit, self._http = True, None
        assert self._danube is not None
        assert self._admin is not None
        assert self._serving is not None
        await asyncio.gather(*(door.stop() for door in (self._flight, self._danube, self._admin)), self._serving)

    def __getattr__(self, name: str) -> str:
        """Addresses of doors: `http`, `flight`, `danube`, `admin`."""
        if name.startswith("_") or name not in self.node.addresses:
            raise AttributeError(name)
        return self.node.addresses[name]


class Brokers:
    """Brokers `a`, `b`, …"""

    def __init__(self, node: Node, names: str) -> None:
        self.cluster = Cluster(node.storage)
        self.node = node
        self._names = names
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="brokers", daemon=True)
        self.all: dict[str, BrokerHere] = {}

    def run(self, work: Coroutine[Any, Any, Answer]) -> Answer:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    def start(self) -> None:
        self._thread.start()
        self.run(self._start())

    async def _start(self) -> None:
        await self.node.start()
        for name in self._names:
            node = self.node
            if self.all:
                node = Node(self.node.storage, has_broker=True)
                assert self.node._parts is not None
                node.use(self.node._parts)
                node._access, node.gate, node._quotas = self.node._access, self.node.gate, self.node._quotas
            self.all[name] = BrokerHere(node, self.cluster, name)
            await self.all[name].start()

    def kill(self, name: str) -> None:
        """End all doors of a broker; what it owned waits for a move."""
        self.run(self.all[name].stop())
        self.cluster.states[name] = BrokerState.GONE

    def close(self) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _close(self) -> None:
        self.node.end_streams()
        await asyncio.gather(*(one.stop() for one in self.all.values()))
        await self.node.stop()

    def __getitem__(self, name: str) -> BrokerHere:
        return self.all[name]


@contextlib.contextmanager
def brokers(folder: Path, names: str = "ab", **sections: Any) -> Iterator[Brokers]:
    given = {"data": folder, "broker": {"port": 0, "admin_port": 0}, "flight": {"port": 0}, **sections}
    with open_node(Settings.model_validate(given), serves=True) as node:
        made = Brokers(node, names)
        made.start()
        try:
            yield made
        finally:
            made.close()

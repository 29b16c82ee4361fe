"""Brokers of one cluster over a real etcd: sessions, leader, moves, failover, and a broker that sleeps."""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from metas import settings as metadata_settings

from frazil.core.clock import SystemClock
from frazil.core.cluster import BrokerState
from frazil.core.errors import DiskFull, Fenced, LossNotAccepted, MetadataInUse, NotOwner, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.core.settings.metadata import MetadataSettings
from frazil.meta.cluster_keys import BROKERS
from frazil.meta.opening import open_meta
from frazil.meta.session import LeasedSession
from frazil.meta.store import ABSENT, MetaStore
from frazil.meta.topic_records import LogIdentity, TopicIdentity, topic_record_key
from frazil.node.ownership.cluster_ownership import ClusterOwnership
from frazil.node.ownership.host import LocalLog
from frazil.node.ownership.opening import cluster_open
from parts.etcd import Etcd, etcd_cluster
from parts.processes import pause

LEASE_MS = 2_000
WAIT_S = 30
ORDERS, PAYMENTS = TopicName("default", "orders"), TopicName("default", "payments")


class Host:
    """Topics without rows."""

    def __init__(self) -> None:
        self.logs: dict[TopicName, LocalLog] = {}
        self.uploaded: list[TopicName] = []
        self.discarded: list[TopicName] = []

    def local(self) -> Mapping[TopicName, LocalLog]:
        return self.logs

    async def open(self, topic: TopicName, identity: TopicIdentity) -> int:
        self.logs[topic] = LocalLog(identity.logs[topic].log_id or "", identity.epoch_of(topic))
        return 1

    async def upload(self, topic: TopicName) -> None:
        pass

    async def close_and_upload(self, topic: TopicName) -> int:
        self.uploaded.append(topic)
        return 0

    async def reopen(self, topic: TopicName) -> None:
        pass

    async def discard(self, topic: TopicName) -> None:
        self.discarded.append(topic)
        self.logs.pop(topic, None)

    def forget(self, topic: TopicName) -> None:
        pass

    def traffic(self) -> Mapping[TopicName, int]:
        return {}


class Member:
    def __init__(self, name: str, meta: MetaStore, host: Host, ownership: ClusterOwnership) -> None:
        self.name = name
        self.meta = meta
        self.host = host
        self.ownership = ownership

    async def create(self, topic: TopicName, ack: str | None) -> None:
        identity = TopicIdentity(topic, {topic: LogIdentity(f"log of {topic}", 1, ack=ack)}, self.name)
        made = await asyncio.to_thread(self.meta.put_if, topic_record_key(topic), identity.encode(), ABSENT)
        assert made is not None
        await self.ownership.created(topic)

    def serves(self, topic: TopicName) -> bool:
        owner = self.ownership.owner_of(topic)
        return owner is not None and owner.broker_id == self.name


@pytest.fixture
def metadata(etcd: Etcd) -> MetadataSettings:
    return metadata_settings(etcd.endpoint)


def settings_of(metadata: MetadataSettings, name: str, lease_ms: int = LEASE_MS) -> Settings:
    return Settings.model_validate(
        {
            "data": Path("/nowhere"),
            "metadata": metadata,
            "objects": {"enabled": True},
            "cluster": {"enabled": True, "broker_id": name, "lease_ms": lease_ms, "rebalance": False},
        }
    )


@contextlib.asynccontextmanager
async def member(
    metadata: MetadataSettings, name: str, host: Host | None = None, lease_ms: int = LEASE_MS
) -> AsyncIterator[Member]:
    settings, own = settings_of(metadata, name, lease_ms), host or Host()
    meta = await asyncio.to_thread(open_meta, settings)
    lost: list[MetadataInUse] = []
    try:
        addresses = {"flight": f"{name}:6660"}
        async with cluster_open(meta, settings, own, addresses, SystemClock(), lost.append) as ownership:
            ownership.start()
            yield Member(name, meta, own, ownership)
        assert not lost
    finally:
        await asyncio.to_thread(meta.close)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not holds():  # noqa: ASYNC110 - what another process does sets no event
            await asyncio.sleep(0.02)


def active(of: Member, count: int) -> Callable[[], bool]:
    return lambda: len([one for one in of.ownership.brokers() if one.addresses]) == count


def test_every_broker_knows_who_serves_a_topic_and_a_move_takes_it_elsewhere(metadata: MetadataSettings) -> None:
    async def run() -> None:
        async with member(metadata, "a") as a, member(metadata, "b") as b:
            await until(active(a, 2))
            await a.create(ORDERS, None)
            a.ownership.must_own(ORDERS)
            await until(lambda: b.ownership.owner_of(ORDERS) is not None)
            with pytest.raises(NotOwner) as refused:
                b.ownership.must_own(ORDERS)
            assert refused.value.addresses == {"flight": "a:6660"}
            await b.ownership.move(ORDERS)
            b.ownership.must_own(ORDERS)
            assert a.host.uploaded == [ORDERS]
            await until(lambda: a.host.discarded == [ORDERS])
            with pytest.raises(NotOwner):
                a.ownership.must_own(ORDERS)
            assert b.host.logs[ORDERS].epoch == 2
            assert {one.broker_id: one.topics for one in a.ownership.brokers()} == {"a": 0, "b": 1}

    asyncio.run(run())


def test_the_lead_and_the_topics_go_on_when_the_leader_stops(metadata: MetadataSettings) -> None:
    async def run() -> None:
        async with member(metadata, "b") as b:
            async with member(metadata, "a") as a:
                await until(active(b, 2))
                await until(lambda: b.ownership.leader() is not None)
                await a.create(ORDERS, None)
                await a.create(PAYMENTS, "object")
                await a.ownership.leave()
                assert a.ownership.topics()
                assert not a.host.logs
            await until(lambda: b.ownership.leader() == "b")
            await until(lambda: b.serves(ORDERS) and b.serves(PAYMENTS))

    asyncio.run(run())


def _holds_topics(metadata: MetadataSettings, told: Connection) -> None:
    """A process with a broker `a` that owns two topics, until it is killed."""

    async def run() -> None:
        async with member(metadata, "a") as a:
            await a.create(ORDERS, "object")
            await a.create(PAYMENTS, None)
            told.send(os.getpid())
            while True:
                if told.poll():
                    told.recv()
                    served = [str(one) for one in (ORDERS, PAYMENTS) if a.serves(one)]
                    try:
                        await asyncio.to_thread(a.meta.put_all, {"/late": b"a"})
                        wrote = True
                    except Fenced:
                        wrote = False
                    told.send((served, wrote))
                await asyncio.sleep(0.02)

    asyncio.run(run())


@contextlib.contextmanager
def process_with_topics(metadata: MetadataSettings) -> Iterator[tuple[int, Connection]]:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=_holds_topics, args=(metadata, there), daemon=True)
    process.start()
    try:
        assert here.poll(60)
        yield here.recv(), here
    finally:
        assert process.pid is not None
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGCONT)
        process.kill()
        process.join(60)


def test_topics_of_a_killed_broker_fail_over_only_if_their_rows_are_in_the_store(metadata: MetadataSettings) -> None:
    async def run(pid: int) -> None:
        async with member(metadata, "b") as b:
            await until(active(b, 2))
            await asyncio.sleep(LEASE_MS / 1_000)
            os.kill(pid, signal.SIGKILL)
            await until(lambda: b.serves(ORDERS))
            assert b.host.logs[ORDERS].epoch == 2
            with pytest.raises(TopicUnavailable, match="--accept-loss"):
                b.ownership.must_own(PAYMENTS)
            assert [one.state for one in b.ownership.brokers()] == [BrokerState.GONE, BrokerState.ACTIVE]
            with pytest.raises(LossNotAccepted):
                await b.ownership.move(PAYMENTS, "b")
            async with member(metadata, "a", Host()) as again:  # with another disk, which has nothing
                await until(lambda: again.serves(PAYMENTS))
                assert again.host.logs[PAYMENTS].epoch == 1
                await until(lambda: b.ownership.owner_of(PAYMENTS) is not None)
            with pytest.raises(LossNotAccepted):
                await b.ownership.move(PAYMENTS)
            await b.ownership.move(PAYMENTS, "b", accept_loss=True)
            b.ownership.must_own(PAYMENTS)

    with process_with_topics(metadata) as (pid, _):
        asyncio.run(run(pid))


def test_a_broker_that_wakes_after_its_lease_changes_nothing_until_it_knows_what_it_has_lost(
    metadata: MetadataSettings,
) -> None:
    async def run(pid: int, told: Connection) -> None:
        async with member(metadata, "b") as b:
            await until(active(b, 2))
            await asyncio.sleep(LEASE_MS / 1_000)
            os.kill(pid, signal.SIGSTOP)
            await until(lambda: b.serves(ORDERS))
            with pytest.raises(TopicUnavailable):
                b.ownership.must_own(PAYMENTS)
            told.send("served?")  # before it wakes: it answers at once
            os.kill(pid, signal.SIGCONT)
            await until(told.poll)
            first, wrote = told.recv()
            assert str(PAYMENTS) in first
            assert not wrote
            served = first
            while served != [str(PAYMENTS)]:
                told.send("served?")
                await until(told.poll)
                served, _ = told.recv()
            assert b.serves(ORDERS)
            await until(lambda: b.ownership.owner_of(PAYMENTS) is not None)

    with process_with_topics(metadata) as (pid, told):
        asyncio.run(run(pid, told))


def test_one_process_has_a_broker_id_at_a_time(metadata: MetadataSettings) -> None:
    async def run() -> None:
        async with member(metadata, "a"):
            with pytest.raises(MetadataInUse, match=r"cluster\.broker_id"):
                async with member(metadata, "a"):
                    pass

    asyncio.run(run())


def test_a_watched_session_is_not_written_by_beats(metadata: MetadataSettings) -> None:
    """A thousand brokers watch each other: a beat wakes nobody."""
    with contextlib.closing(open_meta(settings_of(metadata, "a"))) as meta:
        session = LeasedSession(meta, BROKERS + "a", LEASE_MS, lambda holder: MetadataInUse("", "", holder, ""))
        quiet = LeasedSession(
            meta, BROKERS + "b", LEASE_MS, lambda holder: MetadataInUse("", "", holder, ""), writes_beats=False
        )
        for one in (session, quiet):
            one.take()
        before = {key: meta.get(BROKERS + key) for key in "ab"}
        for one in (session, quiet):
            one.look()
        assert meta.get(BROKERS + "b") == before["b"]
        assert meta.get(BROKERS + "a") != before["a"]


def test_while_etcd_is_away_topics_are_served_and_afterwards_all_goes_on(own_etcd: Etcd) -> None:
    metadata = metadata_settings(own_etcd.endpoint, timeout_ms=1_000)

    async def run() -> None:
        async with member(metadata, "a") as a, member(metadata, "b") as b:
            await until(active(a, 2))
            await a.create(ORDERS, "object")
            await b.create(PAYMENTS, None)
            await until(lambda: a.ownership.owner_of(PAYMENTS) is not None)
            with own_etcd.stopped():
                await asyncio.sleep(2 * LEASE_MS / 1_000)
                a.ownership.must_own(ORDERS)
                b.ownership.must_own(PAYMENTS)
            await until(lambda: a.ownership.leader() is not None)
            await asyncio.sleep(2 * LEASE_MS / 1_000)
            assert a.serves(ORDERS), "nobody took it: both were away"
            assert b.serves(PAYMENTS)
            await a.ownership.move(PAYMENTS, "a")
            assert a.serves(PAYMENTS)

    asyncio.run(run())


class BrokenHost(Host):
    """Its disk has lost a topic: it cannot be opened in this epoch."""

    async def open(self, topic: TopicName, identity: TopicIdentity) -> int:
        if identity.epoch_of(topic) == 1:
            raise DiskFull("/data", "the rows are not there")
        return await super().open(topic, identity)


def test_a_topic_that_its_broker_cannot_open_goes_on_when_the_loss_is_accepted(metadata: MetadataSettings) -> None:
    async def run() -> None:
        async with member(metadata, "a", BrokenHost()) as a:
            with pytest.raises(TopicUnavailable, match="the rows are not there"):
                await a.create(ORDERS, None)
            await until(active(a, 1))
            await a.ownership.move(ORDERS, accept_loss=True)  # to itself: there is no other broker
            a.ownership.must_own(ORDERS)
            assert a.host.logs[ORDERS].epoch == 2
            async with member(metadata, "b") as b:
                with pytest.raises(TopicUnavailable, match="the rows are not there"):
                    await a.create(PAYMENTS, None)
                await until(active(a, 2))
                with pytest.raises(TopicUnavailable, match="its broker a cannot open it"):
                    await b.ownership.move(PAYMENTS, "b")
                await b.ownership.move(PAYMENTS, "b", accept_loss=True)
                b.ownership.must_own(PAYMENTS)

    asyncio.run(run())


def test_topics_stay_where_they_are_while_members_of_etcd_hang_and_wake(tmp_path: Path) -> None:
    """A leader of etcd that wakes up after the leases may end sessions that were renewed elsewhere."""

    async def run(servers: list[Etcd], metadata: MetadataSettings) -> None:
        async with member(metadata, "a", lease_ms=4_000) as a, member(metadata, "b", lease_ms=4_000) as b:
            await until(active(a, 2))
            await a.create(ORDERS, "object")
            await until(lambda: b.ownership.owner_of(ORDERS) is not None)
            for server in servers:
                with server.stopped():
                    for _ in range(30):
                        await asyncio.sleep(0.2)
                        a.ownership.must_own(ORDERS)
                await asyncio.to_thread(_until_answers, server)
            await until(lambda: [one.state for one in b.ownership.brokers()] == [BrokerState.ACTIVE] * 2)
            a.ownership.must_own(ORDERS)
            assert not a.host.uploaded
            await b.ownership.move(ORDERS, "b")
            b.ownership.must_own(ORDERS)

    with etcd_cluster(tmp_path) as servers:
        metadata = metadata_settings(*(server.endpoint for server in servers))
        asyncio.run(run(servers, metadata))


def _until_answers(server: Etcd) -> None:
    while not server.answers():
        pause(0.02)

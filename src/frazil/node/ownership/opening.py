"""Opens the ownership of topics of one broker of a cluster."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from frazil.core.clock import Clock
from frazil.core.errors import MetadataInUse
from frazil.core.process.identity import ProcessIdentity
from frazil.core.settings import Settings
from frazil.core.settings.metadata import MetadataType
from frazil.meta import cluster_keys as keys
from frazil.meta.opening import open_meta
from frazil.meta.session import LeasedSession
from frazil.meta.store import MetaStore
from frazil.node.ownership.calls import MetaCalls, ThreadCalls
from frazil.node.ownership.cluster_ownership import ClusterOwnership, broker_in_use
from frazil.node.ownership.following import Following
from frazil.node.ownership.host import TopicHost
from frazil.node.ownership.moves.leader import Leader
from frazil.node.ownership.moves.requests import MoveRequests
from frazil.node.ownership.owned_topics import OwnedTopics
from frazil.node.ownership.records import OwnershipRecords
from frazil.node.ownership.session_keeper import SessionKeeper
from frazil.node.ownership.view import Changes, ClusterView

TIMEOUT_MS_MIN = 500
"""Of calls that keep the session; see `MetadataSettings.timeout_ms`."""
CALLS_MAX = 8
"""Concurrent calls of the metadata store for ownership."""


def broker_id_of(settings: Settings) -> str:
    return settings.cluster.broker_id or socket.gethostname()


@dataclass(slots=True)
class ClusterThreads:
    """Threads for calls of the metadata store. Watches and the session have their own: they wait for nothing else."""

    calls: MetaCalls = field(default_factory=lambda: ThreadCalls(CALLS_MAX))
    watches: MetaCalls = field(default_factory=lambda: ThreadCalls(4, "frazil-cluster-watch"))
    session: MetaCalls = field(default_factory=lambda: ThreadCalls(1, "frazil-cluster-session"))

    def close(self) -> None:
        for one in (self.calls, self.watches, self.session):
            if isinstance(one, ThreadCalls):
                one.close()


@asynccontextmanager
async def cluster_open(
    meta: MetaStore,
    settings: Settings,
    host: TopicHost,
    addresses: Mapping[str, str],
    clock: Clock,
    on_lost: Callable[[MetadataInUse], None],
    *,
    threads: ClusterThreads | None = None,
    process: ProcessIdentity | None = None,
    is_running: Callable[[ProcessIdentity], bool | None] = ProcessIdentity.is_running,
) -> AsyncIterator[ClusterOwnership]:
    """Take the session of this broker, fence `meta` by it, and follow the cluster; `start` then opens the topics.

    Raises `MetadataInUse` if another process has the broker's id; `on_lost` is called if one takes it later: then this
    process must end. `addresses` is the live mapping of the doors. Close everything that changes `meta` before.
    """
    threads = threads or ClusterThreads()
    view, broker_id = ClusterView(), broker_id_of(settings)
    async with AsyncExitStack() as stack:
        stack.callback(threads.close)
        own_meta = await _session_store(meta, settings, threads)
        if own_meta is not meta:
            stack.callback(own_meta.close)
        in_use = _InUse(broker_id, ", ".join(settings.metadata.endpoints), settings.metadata.prefix)
        session = LeasedSession(
            own_meta,
            keys.BROKERS + broker_id,
            settings.cluster.lease_ms,
            in_use,
            writes_beats=False,
            fences_anew=True,
            process=process,
            is_running=is_running,
        )
        keeper = SessionKeeper(broker_id, session, meta, addresses, threads.calls, threads.session, clock)
        await keeper.take(meta)
        stack.push_async_callback(keeper.close)
        changed = _Changed()
        records = OwnershipRecords(meta, view, threads.calls, changed)
        following = Following(meta, view, threads.watches, changed)
        leader = Leader(
            broker_id, keeper, view, records, meta, threads.calls, settings.cluster, clock, is_running=is_running
        )
        owned = OwnedTopics(broker_id, session.id, view, records, host, settings.cluster.moves_parallel_max)
        requests = MoveRequests(broker_id, view, records, owned.is_served)
        owned.on_served = requests.changed
        ownership = ClusterOwnership(broker_id, settings.cluster, view, keeper, leader, owned, requests, records)
        changed.then = ownership.changed
        await following.load()
        following.start()
        stack.push_async_callback(ownership.close, following)
        keeper.start(host.traffic, following.load, on_lost)
        yield ownership


async def _session_store(meta: MetaStore, settings: Settings, threads: ClusterThreads) -> MetaStore:
    """Return a store whose calls end, and try other members of etcd, within the lease."""
    if settings.metadata.type is MetadataType.SQLITE:
        return meta
    timeout_ms = min(settings.metadata.timeout_ms, max(TIMEOUT_MS_MIN, settings.cluster.lease_ms // 2))
    quick = settings.metadata.model_copy(update={"timeout_ms": timeout_ms})
    return await threads.calls.call(lambda: open_meta(settings.model_copy(update={"metadata": quick})))


@dataclass(frozen=True, slots=True)
class _InUse:
    broker_id: str
    where: str
    prefix: str

    def __call__(self, holder: str) -> MetadataInUse:
        return broker_in_use(self.broker_id, self.where, self.prefix, holder)


@dataclass(slots=True)
class _Changed:
    """Passes changes on, as soon as somebody wants them."""

    then: Callable[[Changes], None] = lambda _: None

    def __call__(self, changes: Changes) -> None:
        self.then(changes)

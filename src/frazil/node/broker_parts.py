"""The broker of a Node with its metadata store, schema registry and schema checks, opened and closed together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from frazil.broker.broker import Broker
from frazil.broker.store.claim import Claim
from frazil.broker.store.claim_keeper import ClaimKeeper
from frazil.broker.store.companion import Companion
from frazil.broker.subscriptions.ack_guard import AckGuard
from frazil.broker.topics.namespaces import Namespaces
from frazil.core.clock import Clock
from frazil.core.disk import LocalDisk
from frazil.core.errors import MetadataInUse
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.core.settings.metadata import MetadataType
from frazil.log.folder.identity import folder_id
from frazil.log.storage import Storage
from frazil.meta.opening import open_meta
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import MetaStore
from frazil.node.publish.schema_checks import SchemaChecks
from frazil.node.threads import Threads
from frazil.registry.issued_numbers import IssuedNumbers
from frazil.registry.registry import SchemaRegistry
from frazil.registry.topics import TopicSchemas

if TYPE_CHECKING:
    from frazil.node.member.joining import Membership
    from frazil.node.ownership.cluster_ownership import ClusterOwnership

COPY_FILE = "~meta-copy.db"
"""The file with a copy of the records that must survive a restore of the metadata store from an older copy."""
SCHEMA_CALLS_MAX = 8
"""Number of concurrent registry calls; further calls wait."""

OnLost = Callable[[MetadataInUse], None]


@dataclass(frozen=True, slots=True)
class BrokerParts:
    """The open broker and the registry of schemas beside it."""

    broker: Broker
    registry: SchemaRegistry
    topics: TopicSchemas
    namespaces: Namespaces
    checks: SchemaChecks
    threads: Threads
    """Threads for registry calls, which block: a hanging metadata store delays no topic."""
    ownership: ClusterOwnership | None = None
    """None for a server that is alone."""


@asynccontextmanager
async def broker_parts_open(
    storage: Storage, settings: Settings, clock: Clock, on_lost: OnLost, addresses: Mapping[str, str] | None = None
) -> AsyncIterator[BrokerParts]:
    """Open all parts on the running event loop. Stop the doors before closing: cursors are stored last.

    `on_lost` is called if another server takes the metadata over: this one must end. `addresses` is the live mapping of
    the doors, for the other brokers of a cluster.
    """
    async with AsyncExitStack() as stack:
        meta = await asyncio.to_thread(open_meta, settings)
        stack.callback(meta.close)
        late = stack.enter_context(ExitStack())  # the copy is closed after the claim, which writes to it
        member = await _joined(stack, storage, meta, settings, clock, on_lost, addresses or {})
        ownership, cluster = (None, None) if member is None else (member.ownership, member.cluster)
        claim = None if member is not None else await _claim(meta, settings, on_lost)
        if claim is not None:
            stack.push_async_callback(claim.close)
            await claim.take()
        copy = await asyncio.to_thread(SqliteStore, _folder(settings) / COPY_FILE)
        late.callback(copy.close)
        registry = SchemaRegistry(meta, clock, given=IssuedNumbers(copy))
        await asyncio.to_thread(registry.start)
        topics = TopicSchemas(meta, registry, clock)
        is_shared = settings.metadata.type is not MetadataType.SQLITE
        beside = copy if is_shared else None  # a file in the folder is restored with the folder
        companion, on_demand = _SchemaOfTopic(storage, topics), not settings.security.enabled
        broker = Broker(
            storage, meta, settings.broker, clock, companion, beside, letters_on_demand=on_demand, cluster=cluster
        )
        threads = Threads("frazil-schemas", SCHEMA_CALLS_MAX)
        stack.callback(threads.close)
        checks = SchemaChecks(topics, threads)
        stack.callback(checks.close)
        stack.push_async_callback(broker.close)
        guard = AckGuard(broker)  # before the broker starts: all rows of a topic that it does not know yet are kept
        await asyncio.to_thread(storage.add_guard, guard)
        stack.callback(storage.remove_guard, guard)
        await broker.start()
        await asyncio.to_thread(topics.learn, [str(name) for name in broker.topics])
        if claim is not None:
            claim.keep(broker)
        namespaces = Namespaces(meta, storage, partial(_all_topics, broker, ownership))
        if member is not None:
            copying = await member.start(broker)
            stack.push_async_callback(_ended, copying)
        yield BrokerParts(broker, registry, topics, namespaces, checks, threads, ownership)


def _all_topics(broker: Broker, ownership: ClusterOwnership | None) -> list[TopicName]:
    return [*broker.topics, *(() if ownership is None else ownership.topics())]


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _joined(
    stack: AsyncExitStack,
    storage: Storage,
    meta: MetaStore,
    settings: Settings,
    clock: Clock,
    on_lost: OnLost,
    addresses: Mapping[str, str],
) -> Membership | None:
    """Join the cluster; None for a server that is alone."""
    if not settings.cluster.enabled:
        return None
    from frazil.node.member.joining import cluster_joined  # with the library of the object store

    return await stack.enter_async_context(cluster_joined(storage, meta, settings, clock, addresses, on_lost))


async def _claim(meta: MetaStore, settings: Settings, on_lost: OnLost) -> ClaimKeeper | None:
    """Claim a metadata store that other servers can reach; a file in the folder belongs to the folder's owner."""
    metadata = settings.metadata
    if metadata.type is MetadataType.SQLITE:
        return None
    folder = _folder(settings)
    claim = Claim(meta, metadata, await asyncio.to_thread(folder_id, LocalDisk(), folder), str(folder))
    return ClaimKeeper(claim, on_lost)


def _folder(settings: Settings) -> Path:
    return settings.data or settings.log_folder


class _SchemaOfTopic(Companion):
    """The schema settings of a topic. Partitions share them, so they are deleted with the last partition."""

    def __init__(self, storage: Storage, schemas: TopicSchemas) -> None:
        self._storage = storage
        self._schemas = schemas

    def keys(self, name: TopicName) -> list[str]:
        is_last = self._storage.family(name) <= {name}
        return [self._schemas.key(str(name))] if is_last else []

    def forgotten(self, name: TopicName) -> None:  # noqa: ARG002 - the whole cache is dropped
        self._schemas.changed()

"""Open what a Node knows of tenants: their directory, their quotas, and the interface to them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.core.settings import Settings
from frazil.log.storage import Storage
from frazil.meta.opening import has_meta, open_meta
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.grants import BindingAdmin, KeyAdmin
from frazil.node.telemetry.admin import Grants, TenantAdmin
from frazil.node.telemetry.deletion.deletion import TenantDeletion, TopicsOfAll
from frazil.node.telemetry.directory import TenantDirectory
from frazil.node.telemetry.follower import TenantFollower
from frazil.node.telemetry.members import Members
from frazil.node.telemetry.quotas import TenantQuotas
from frazil.node.telemetry.scopes import is_of
from frazil.node.telemetry.table_limit import TableLimit
from frazil.node.telemetry.tenants import Tenant

if TYPE_CHECKING:
    from frazil.node.access.opening import AccessParts
    from frazil.node.node import Node


@dataclass(frozen=True, slots=True)
class TenantParts:
    directory: TenantDirectory
    quotas: TenantQuotas
    tables: TableLimit
    admin: TenantAdmin


@asynccontextmanager
async def tenants_open(node: Node, access: AccessParts | None) -> AsyncIterator[TenantParts]:
    """Open the parts, with a connection of their own to the metadata store; a failure leaves nothing open."""
    settings, telemetry = node.settings, node.settings.telemetry
    topics = node.topics(LOCAL)
    async with AsyncExitStack() as stack:
        store = await asyncio.to_thread(open_meta, settings)
        stack.push_async_callback(asyncio.to_thread, store.close)
        follower = TenantFollower(topics, lambda: node.ownership(LOCAL).is_clustered)
        directory = await asyncio.to_thread(TenantDirectory, store, on_change=follower.put)
        stack.push_async_callback(asyncio.to_thread, directory.close)
        members = None if access is None else Members(access.gate.directory)
        quotas = TenantQuotas(directory, telemetry.limits, node.clock, _Sizes(node.storage).of, members)
        stack.callback(quotas.close)
        everywhere = TopicsOfAll(topics, lambda: node.ownership(LOCAL).topics())
        deletion = TenantDeletion(settings, directory, everywhere, node.clock)
        follower.start(deletion)
        stack.push_async_callback(asyncio.to_thread, follower.close)
        grants = None if access is None else Grants(access.gate.directory, access.keys, access.bindings)
        if access is not None:
            access.quotas.shared = quotas
        tables = TableLimit(lambda: node.ownership(LOCAL).topics())
        admin = TenantAdmin(directory, telemetry, node.clock, grants, lambda: deletion)
        yield TenantParts(directory, quotas, tables, admin)


@contextlib.contextmanager
def stored_tenants(settings: Settings) -> Iterator[TenantAdmin]:
    """Open the interface to tenants for a process without a server, which opens the folder to delete one."""
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(contextlib.closing(open_meta(settings)))
        clock, directory = SystemClock(), TenantDirectory(store, follows=False)
        known = AccessDirectory(store, follows=False)
        grants = Grants(known, KeyAdmin(known, clock), BindingAdmin(known)) if settings.security.enabled else None

        def deletion() -> TenantDeletion:
            from frazil.node.node import open_node

            node = stack.enter_context(open_node(settings))
            topics = node.topics(LOCAL)
            return TenantDeletion(settings, directory, TopicsOfAll(topics, topics.names), clock)

        yield TenantAdmin(directory, settings.telemetry, clock, grants, deletion)


def read_tenants(settings: Settings) -> dict[str, Tenant]:
    """Return all tenants as they are stored now, for a process that moves rows; none if there is no store."""
    if not has_meta(settings):
        return {}
    with contextlib.closing(open_meta(settings)) as store:
        return {one.name: one for one in TenantDirectory(store, follows=False).all()}


class _Sizes:
    """What the logs of a tenant hold in this folder."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    def of(self, tenant: str) -> int:
        return sum(self._of_topic(name) for name in self._storage.names() if is_of(tenant, name))

    def _of_topic(self, name: TopicName) -> int:
        try:
            log = self._storage.topic(str(name), create=False).log
        except (FrazilError, OSError):  # deleted, moved to another broker, or it cannot be opened
            return 0
        return sum(segment.used_bytes for segment in log.segments) + log.queued_bytes

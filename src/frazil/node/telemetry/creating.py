"""Create a topic of a tenant, with the tenant's retention, within its limits of datasets and tables."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from frazil.core import access
from frazil.core.access import Action
from frazil.core.errors import FrazilError, TenantNotFound, TopicExists
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.node.request_ids import peer_of_call
from frazil.node.telemetry.tenants import Tenant

if TYPE_CHECKING:
    import pyarrow as pa

    from frazil.node.node import Node
    from frazil.node.telemetry.places import TenantPlace

    Admit = Callable[[TenantPlace], Tenant | None]


async def create_topic(
    node: Node, who: Principal, place: TenantPlace, topic: TopicName, schema: pa.Schema, admit: Admit
) -> None:
    """Create a topic, unless another caller or broker is faster. `admit` adds the dataset to the tenant.

    Raises `PermissionDenied` and `QuotaExceeded` before anything is changed.
    A deletion of the tenant that began meanwhile may have looked for topics before this one was there. So the tenant is
    asked for again: if it is gone, or another one has its name, the topic goes too, and `TenantNotFound` is raised. A
    creation that has begun goes on also if its caller leaves.
    """
    node.gate.check(who, Action.CREATE, access.topic(str(topic)), peer_of_call())
    creating = _create(node, who, place, topic, schema, admit)
    await asyncio.shield(asyncio.create_task(creating, name="topic of a tenant"))


async def _create(
    node: Node, who: Principal, place: TenantPlace, topic: TopicName, schema: pa.Schema, admit: Admit
) -> None:
    async with contextlib.AsyncExitStack() as held:
        parts = node.tenant_parts
        if parts is not None:
            known = parts.directory.get(place.tenant) or Tenant(place.tenant, 0)  # that `admit` may create
            limit = known.limits_over(node.settings.telemetry.limits).tables
            room = held.enter_context(parts.tables.place(place.tenant, topic))
            await asyncio.to_thread(room.take, limit)
        tenant = await asyncio.to_thread(admit, place)
        try:
            await node.create_topic(who, topic, schema=schema, retention=None if tenant is None else tenant.retention)
        except TopicExists:
            return
    if parts is not None and tenant is not None and not await asyncio.to_thread(parts.directory.is_there, tenant):
        with contextlib.suppress(FrazilError):  # the deletion has seen it
            await node.topics(LOCAL).run(node.topics(LOCAL).delete, topic, force=True)
        raise TenantNotFound(place.tenant)

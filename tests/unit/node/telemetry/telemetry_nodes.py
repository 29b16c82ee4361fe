"""Nodes with telemetry, for tests of tenants."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import frazil
from frazil.core.clock import Clock
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.core.settings import Settings, make_settings
from frazil.node.access.gate import Credentials
from frazil.node.node import Node
from frazil.node.telemetry.admin import TenantAdmin


def run(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def test(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(work(tmp_path), 60))

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test


def settings_of(folder: Path, *, secured: bool = False, **more: Any) -> Settings:
    telemetry = {"enabled": True, **more.pop("telemetry", {})}
    security = {"enabled": secured}
    return make_settings({"data": folder / "data", "telemetry": telemetry, "security": security, **more})


@asynccontextmanager
async def started(settings: Settings, *, has_broker: bool = True, clock: Clock | None = None) -> AsyncIterator[Node]:
    with frazil.open(settings) as storage:
        node = Node(storage, has_broker=has_broker, clock=clock)
        await node.start()
        try:
            yield node
        finally:
            node.end_streams()
            await node.stop()


def admin(node: Node) -> TenantAdmin:
    return node.telemetry(LOCAL).tenants(LOCAL)


async def create(node: Node, name: str, **given: Any) -> Principal:
    """Create a tenant, and return the principal of its key; while security is off, the anonymous one."""
    made = await asyncio.to_thread(admin(node).create, name, given)
    return ANONYMOUS if made["key"] is None else await known(node, made["key"]["key"])


async def known(node: Node, key: str) -> Principal:
    return await node.gate.identify(Credentials(f"Bearer {key}"))


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110 - what another process does sets no event
        await asyncio.sleep(0.01)

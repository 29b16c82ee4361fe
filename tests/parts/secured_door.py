"""The admin door of a Node with security and a real gate, called in the same event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.core.access import Right
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.core.settings import make_settings
from frazil.doors.http.door import make_app
from frazil.node.access.local_token import read_local_token
from frazil.node.node import Node
from frazil.node.request_ids import RequestIds

ORDERS, LETTERS, SUBJECT, SUBSCRIPTION = "/shop/orders", "/shop/orders-dead-letter", "tea", "billing"
ADMIN = "local"
"""Callers of the tests are keys, by a name of the test; this one has the local token."""
TEXT = {"schema_type": "string", "definition": "string"}
NO_RULES = [("allow", "read", "topic", "/none/none")]


class Door:
    """The door of a started Node with security, called in the same event loop."""

    def __init__(self, node: Node, local: str) -> None:
        self.node, self.app = node, make_app(node)
        transport = httpx.ASGITransport(RequestIds(self.app), client=("10.1.2.3", 4711))
        self.client = httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:6680")
        self.keys: dict[str, str] = {ADMIN: local}
        self.ids: dict[str, str] = {}
        self.spare = ""

    def add(self, name: str, *rights: Right, lifetime_ms: int | None = None) -> None:
        """Give a caller exactly these rights. It gets a key at first."""
        rules = [("allow", str(one.action), str(one.resource.kind), one.resource.name) for one in rights]
        self.allow(name, *rules, lifetime_ms=lifetime_ms)

    def allow(self, name: str, *rules: tuple[str, str, str, str], lifetime_ms: int | None = None) -> None:
        """Rules are (effect, action, kind, pattern)."""
        names = ("effect", "actions", "kind", "pattern")
        told = [dict(zip(names, (one[0], [one[1]], *one[2:]), strict=True)) for one in rules or NO_RULES]
        self.node.roles(LOCAL).put(f"of-{name}", told)
        if name not in self.keys:
            record, self.keys[name] = self.node.keys(LOCAL).create(name, lifetime_ms=lifetime_ms)
            self.ids[name] = record.id
            self.node.bindings(LOCAL).add(f"key:{record.id}", f"of-{name}")

    async def call(self, method: str, url: str, name: str | None, body: Any = None) -> httpx.Response:
        headers = {} if name is None else {"authorization": f"Bearer {self.keys.get(name, name)}"}
        return await self.client.request(method, url.replace("SPARE", self.spare), json=body, headers=headers)

    async def get(self, url: str, name: str | None = ADMIN) -> Any:
        answer = await self.call("GET", url, name)
        assert answer.status_code == 200, answer.text
        return answer.json()


@asynccontextmanager
async def opened(folder: Path, **security: Any) -> AsyncIterator[Door]:
    given = {"security": {"enabled": True, **security}, "telemetry": {"enabled": True}}
    settings = make_settings({"data": folder / "data", **given})
    with frazil.open(settings) as storage:
        node = Node(storage, has_broker=True, command=lambda *_: [sys.executable, "-c", "pass"])
        await node.start()
        local = read_local_token(folder / "data")
        assert local is not None
        door = Door(node, local)
        try:
            await node.create_topic(LOCAL, TopicName.parse(ORDERS))
            await node.subscribe(LOCAL, ORDERS, SUBSCRIPTION, Kind.SHARED, "c")
            await door.call("POST", f"/v1/schemas/{SUBJECT}/versions", ADMIN, TEXT)
            await door.call("POST", "/v1/namespaces", ADMIN, {"namespace": "empty"})
            door.spare = node.keys(LOCAL).create("spare")[0].id
            node.roles(LOCAL).put("spare", [{"actions": ["read"], "kind": "topic"}])
            node.bindings(LOCAL).add("jwt:spare", "reader")
            node.telemetry(LOCAL).tenants(LOCAL).create("acme", {}, with_key=False)
            yield door
        finally:
            await door.client.aclose()
            node.end_streams()
            await node.stop()


def run(work: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    def test(tmp_path: Path) -> None:
        async def inside() -> None:
            async with opened(tmp_path) as door:
                await asyncio.wait_for(work(door), 100)

        asyncio.run(inside())

    test.__name__, test.__doc__ = work.__name__, work.__doc__
    return test

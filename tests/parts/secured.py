"""The gRPC doors of a Node with security on, in this process, and clients that call them with any credentials."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from frazil.core.settings import Settings
from frazil.doors.calls import Method, Service, Streams
from frazil.doors.danube.door import DanubeDoor
from frazil.doors.danube_admin import AdminDoor
from frazil.doors.flight.door import FlightDoor
from frazil.doors.otlp.counts import OtlpCounts
from frazil.doors.otlp.door import OtlpDoor
from frazil.node.access.opening import AccessParts
from frazil.node.node import Node, open_node

SECONDS_MAX = 20


class SecuredDoors:
    """All gRPC doors of a Node, on one event loop."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.danube = DanubeDoor(node)
        self.admin = AdminDoor(node)
        self.flight = FlightDoor(node, node.settings.flight, movers=True)
        self.otlp = OtlpDoor(node, OtlpCounts())
        self.otlp_http = ""
        self.channels: dict[str, grpc.aio.Channel] = {}

    @property
    def access(self) -> AccessParts:
        found = self.node._access
        assert found is not None
        return found

    async def start(self) -> None:
        for name, door in (("danube", self.danube), ("admin", self.admin), ("flight", self.flight)):
            await door.start()
            address = door.address if isinstance(door, FlightDoor) else door.url
            self.channels[name] = grpc.aio.insecure_channel(address.split("://")[1])
        addresses = await self.otlp.start()
        self.channels["otlp"] = grpc.aio.insecure_channel(addresses["otlp_grpc"].split("://")[1])
        self.otlp_http = addresses["otlp_http"]

    async def stop(self) -> None:
        for channel in self.channels.values():
            await channel.close()
        await asyncio.gather(*(door.stop() for door in (self.otlp, self.flight, self.danube, self.admin)))

    def tables(self) -> dict[str, list[Service]]:
        """The tables of calls by door."""
        doors = {"danube": self.danube, "admin": self.admin, "flight": self.flight, "otlp": self.otlp.grpc}
        return {name: door.tables() for name, door in doors.items()}

    async def key(self, *bindings: tuple[str, str], lifetime_ms: int | None = None) -> str:
        """Make a key with these roles in these scopes."""
        record, secret = await asyncio.to_thread(self.access.keys.create, "tests", "", lifetime_ms)
        for role, scope in bindings:
            await asyncio.to_thread(self.access.bindings.add, record.principal, role, scope)
        return secret

    async def revoke(self, key: str) -> None:
        await asyncio.to_thread(self.access.keys.revoke, key_id(key))

    def call(self, door: str, service: str, method: Method, requests: Sequence[bytes], key: str | None) -> Any:
        """Begin a call with serialised messages. Metadata as every client of gRPC sends it."""
        path = f"/{service}/{method.name}"
        channel: Any = self.channels[door]  # gRPC's types know no calls with serialised messages
        metadata = () if key is None else (("authorization", f"Bearer {key}"),)
        metadata += (("x-frazil-tenant", "acme"),) if door == "otlp" else ()
        if method.streams is Streams.NONE:
            return channel.unary_unary(path)(requests[0], metadata=metadata, timeout=SECONDS_MAX)
        if method.streams is Streams.ANSWERS:
            return channel.unary_stream(path)(requests[0], metadata=metadata, timeout=SECONDS_MAX)
        return channel.stream_stream(path)(iter(requests), metadata=metadata, timeout=SECONDS_MAX)


def key_id(key: str) -> str:
    """The public part of a key, by which it is revoked."""
    return key.split("_")[1]


@contextlib.asynccontextmanager
async def secured(folder: Path, **sections: Any) -> AsyncIterator[SecuredDoors]:
    given = {
        "data": folder,
        "security": {"enabled": True},
        "broker": {"port": 0, "admin_port": 0},
        "flight": {"port": 0},
        "telemetry": {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}},
        **sections,
    }
    with open_node(Settings.model_validate(given), serves=True) as node:
        await node.start()
        doors = SecuredDoors(node)
        try:
            await doors.start()
            yield doors
        finally:
            await doors.stop()
            await node.stop()

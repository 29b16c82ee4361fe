"""The OTLP doors of a Node in this process, and plain clients that send any bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import httpx

from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.doors.otlp.counts import OtlpCounts
from frazil.doors.otlp.door import OtlpDoor
from frazil.doors.otlp.statuses import DETAILS, retry_after_ms
from frazil.node.node import Node, open_node
from frazil.telemetry.requests import SERVICES
from frazil.telemetry.signals import Signal, topic_of_signal

SECONDS_MAX = 30
PROTOBUF = {"content-type": "application/x-protobuf"}


class Reply(NamedTuple):
    """How a request over gRPC ended."""

    code: grpc.StatusCode
    message: str = ""
    retry_ms: int | None = None


class OtlpDoors:
    def __init__(self, node: Node, door: OtlpDoor, counts: OtlpCounts, addresses: dict[str, str]) -> None:
        self.node = node
        self.door = door
        self.counts = counts
        self.grpc = addresses["otlp_grpc"].removeprefix("http://")
        self.url = addresses["otlp_http"]
        options = [("grpc.max_send_message_length", -1)]
        self.channel: Any = grpc.aio.insecure_channel(self.grpc, options)
        self.http = httpx.AsyncClient(base_url=self.url, timeout=SECONDS_MAX)

    async def call(
        self, body: bytes, signal: Signal = Signal.TRACES, headers: Sequence[tuple[str, str]] = (), **options: Any
    ) -> Reply:
        """Send over gRPC."""
        method = self.channel.unary_unary(f"/{SERVICES[signal]}/Export")
        try:
            await method(body, metadata=headers, timeout=SECONDS_MAX, **options)
        except grpc.aio.AioRpcError as error:
            details = dict(error.trailing_metadata() or ()).get(DETAILS)
            retry = None if details is None else retry_after_ms(details)
            return Reply(error.code(), error.details() or "", retry)
        return Reply(grpc.StatusCode.OK)

    async def post(self, body: Any, signal: Signal = Signal.TRACES, **headers: str) -> httpx.Response:
        """Send over HTTP. An underscore in a name of a header is a dash."""
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(f"/v1/{signal.value}", content=body, headers={**PROTOBUF, **given})

    async def raw(self, data: bytes, *, ends: bool = False) -> bytes:
        """Send bytes over a plain connection, and return all that is answered."""
        host, _, port = self.url.removeprefix("http://").rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            writer.write(data)
            if ends:
                writer.write_eof()
            async with asyncio.timeout(SECONDS_MAX):
                return await reader.read()
        except ConnectionResetError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    def stored(self, signal: Signal = Signal.TRACES, tenant: str = "default") -> list[bytes]:
        """The requests in the log; none if there is no topic."""
        name = topic_of_signal(tenant, "default", signal)
        if TopicName.parse(str(name)) not in self.node.storage.names():
            return []
        batches = self.node.storage.topic(str(name), create=False).read_batches()
        return [one for batch in batches for one in batch.column("request").to_pylist()]


@contextlib.asynccontextmanager
async def otlp_doors(
    folder: Path, security: bool = False, *, others: Mapping[str, Any] | None = None, **otlp: Any
) -> AsyncIterator[OtlpDoors]:
    """`otlp` are its settings, `others` those of other sections."""
    given = {
        "data": folder,
        "security": {"enabled": security},
        "broker": {"enabled": False},
        "telemetry": {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0, **otlp}},
        **(others or {}),
    }
    with open_node(Settings.model_validate(given), serves=True) as node:
        await node.start()
        counts = OtlpCounts()
        door = OtlpDoor(node, counts)
        try:
            doors = OtlpDoors(node, door, counts, await door.start())
            try:
                yield doors
            finally:
                await doors.channel.close()
                await doors.http.aclose()
        finally:
            await door.stop()
            await node.stop()

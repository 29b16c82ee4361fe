"""Connections that say nothing, or too slowly: closed in time, and counted meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from cryptography import x509
from uvicorn.server import ServerState

from frazil.core.settings.security import TlsSettings
from frazil.doors import descriptors, grpc_server, secure_http
from frazil.doors.client_certificates import certificate_of_scope
from frazil.doors.descriptors import BoundedHttp
from frazil.doors.grpc_server import GrpcServer
from frazil.doors.secure_http import SecureHttp, SecureListener
from frazil.doors.tls import DoorTls
from frazil.testing import FakeClock
from parts.certificates import Certificates, certificates

SHORT_S = 0.5
REQUEST = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return certificates(tmp_path)


@pytest.fixture
def few_connections(monkeypatch: pytest.MonkeyPatch) -> int:
    """Lower the limit of connections, not that of descriptors: other tests of this process have descriptors open."""
    monkeypatch.setattr(descriptors, "CONNECTIONS_MAX", 25)
    return descriptors.connections_max()


def door_tls(made: Certificates, client_certificates: str = "none") -> DoorTls:
    return DoorTls(TlsSettings.model_validate(made.tls(client_certificates)), "security.tls", FakeClock())


async def _answer(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    found = certificate_of_scope(scope)
    shown = None if found is None else f"{found.name} {found.expires_us}"
    await send({"type": "http.response.body", "body": f"{scope['scheme']} {shown}".encode()})


@asynccontextmanager
async def listening(tls: DoorTls) -> AsyncIterator[tuple[int, ServerState]]:
    state, config = ServerState(), uvicorn.Config(_answer, log_config=None, lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as door:
        listener = SecureListener(door, tls, lambda: SecureHttp(config, state, {}), state.connections)
        try:
            yield door.getsockname()[1], state
        finally:
            await listener.close()


def trusting(made: Certificates, *, with_certificate: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.ca))
    if with_certificate:
        context.load_cert_chain(*made.client)
    return context


async def closed(writer: asyncio.StreamWriter) -> None:
    """Close a connection before the loop ends, whatever the other side has sent or left unread."""
    writer.transport.abort()
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()


async def rest(reader: asyncio.StreamReader) -> bytes:
    """What comes until the end. A reset is an end, too: the other side has closed with bytes unread."""
    with contextlib.suppress(ConnectionResetError):
        return await reader.read()
    return b""


async def asked(port: int, context: ssl.SSLContext) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    writer.write(REQUEST)
    answer = await reader.read()
    await closed(writer)
    return answer


def test_a_silent_connection_counts_and_is_closed(
    made: Certificates, few_connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(secure_http, "HANDSHAKE_S_MAX", 3.0)

    async def crowd() -> None:
        async with listening(door_tls(made)) as (port, state):
            silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(few_connections)]
            while len(state.connections) < few_connections:  # noqa: ASYNC110 - it is the listener that counts
                await asyncio.sleep(0.01)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert await reader.read() == b"", "one too many is closed at once"
            await closed(writer)
            for reader, writer in silent:
                assert await reader.read() == b"", "closed for its silence"
                await closed(writer)
            assert b"https None" in await asked(port, trusting(made))

    asyncio.run(asyncio.wait_for(crowd(), 30))


def test_an_optional_certificate_names_its_client_and_its_end(made: Certificates) -> None:
    pem = Path(made.client[0]).read_bytes()
    end_us = int(x509.load_pem_x509_certificate(pem).not_valid_after_utc.timestamp()) * 1_000_000

    async def calls() -> None:
        async with listening(door_tls(made, "optional")) as (port, _):
            assert b"https None" in await asked(port, trusting(made))
            assert f"https dev-client {end_us}".encode() in await asked(port, trusting(made, with_certificate=True))
        async with listening(door_tls(made)) as (port, _):
            assert b"https None" in await asked(port, trusting(made, with_certificate=True)), "nobody asked for it"

    asyncio.run(asyncio.wait_for(calls(), 30))


def test_any_failure_in_a_handshake_closes_its_connection(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> ssl.SSLContext:
        raise TypeError("a fault of the door")

    async def call() -> None:
        tls = door_tls(made)
        async with listening(tls) as (port, state):
            with monkeypatch.context() as faulty:
                faulty.setattr(tls, "context", fail)
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                assert await asyncio.wait_for(reader.read(), 5) == b""
                await closed(writer)
            assert not state.connections
            assert b"https None" in await asked(port, trusting(made)), "the listener goes on"

    asyncio.run(asyncio.wait_for(call(), 30))


def test_slow_headers_end_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each byte comes long before any pause would be noticed."""
    monkeypatch.setattr(descriptors, "HEADERS_S_MAX", SHORT_S)

    async def slow() -> int:
        state, config = ServerState(), uvicorn.Config(_answer, log_config=None, lifespan="off")
        loop = asyncio.get_running_loop()
        door = await loop.create_server(lambda: BoundedHttp(config, state, {}), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", door.sockets[0].getsockname()[1])
        sent, ended = 0, asyncio.ensure_future(rest(reader))
        for sign in b"GET / HTTP/1.1\r\nX: " + b"x" * 10_000:
            writer.write(bytes([sign]))
            sent += 1
            await asyncio.wait([ended], timeout=SHORT_S / 20)
            if ended.done():
                break
        assert ended.result() == b""
        await closed(writer)
        door.close()
        return sent

    assert asyncio.run(asyncio.wait_for(slow(), 30)) < 100


def test_a_silent_connection_to_grpc_is_closed(made: Certificates, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_server, "HANDSHAKE_MS_MAX", int(SHORT_S * 1_000))

    async def wait() -> None:
        server = GrpcServer(1_000_000, 2)
        server.listen("127.0.0.1", 0, "flight.port", door_tls(made))
        await server.start([])
        silent = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await asyncio.wait_for(reader.read(), SHORT_S) == b"", "one too many"
        await closed(writer)
        for reader, writer in silent:
            assert await reader.read() == b""
            await closed(writer)
        await server.stop(0)

    asyncio.run(asyncio.wait_for(wait(), 30))

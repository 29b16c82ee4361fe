"""Requests that never end: slow bodies, unfinished requests behind others, answers that nobody reads."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from frazil.core.settings.security import TlsSettings
from frazil.doors import descriptors
from frazil.doors.descriptors import BoundedHttp, connections_max
from frazil.doors.secure_http import SecureHttp, SecureListener
from frazil.doors.tls import DoorTls
from frazil.testing import FakeClock
from parts.certificates import certificates

SHORT_S = 0.5
END_S_MAX = 10.0
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"
LARGE_BYTES = 32 << 20


async def _answered(scope: Any, receive: Any, send: Any) -> None:
    """Answer without the body, as a refusal does."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": b"here"})


async def _read_first(scope: Any, receive: Any, send: Any) -> None:
    while (message := await receive())["type"] == "http.request" and message.get("more_body"):
        pass
    await _answered(scope, receive, send)


async def _large(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": bytes(LARGE_BYTES)})


async def _late(scope: Any, receive: Any, send: Any) -> None:
    await asyncio.sleep(3 * SHORT_S)
    await _answered(scope, receive, send)


@asynccontextmanager
async def listening(app: Any) -> AsyncIterator[tuple[int, ServerState]]:
    state, config = ServerState(), uvicorn.Config(app, log_config=None, lifespan="off", timeout_keep_alive=1)
    loop = asyncio.get_running_loop()
    door = await loop.create_server(lambda: BoundedHttp(config, state, {}), "127.0.0.1", 0)
    try:
        yield door.sockets[0].getsockname()[1], state
    finally:
        door.close()


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HEADERS_S_MAX", "BODY_S_MAX", "UNREAD_S_MAX"):
        monkeypatch.setattr(descriptors, name, SHORT_S)


def run(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(work(), 30))


async def _until_closed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send a byte now and then; the server ends it."""
    loop = asyncio.get_running_loop()
    until, ended = loop.time() + END_S_MAX, asyncio.ensure_future(reader.read())
    while not ended.done():
        assert loop.time() < until, "it is still open"
        writer.write(b"x")
        await asyncio.wait([ended], timeout=SHORT_S / 5)
    with contextlib.suppress(ConnectionResetError):  # a byte came after the end
        ended.result()
    writer.close()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("app", [_answered, _read_first])
def test_a_slow_body_ends_a_connection(app: Any) -> None:
    async def slow() -> None:
        async with listening(app) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(BODY)
            await _until_closed(reader, writer)

    run(slow)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("second", [b"GET / HT", BODY])
def test_an_unfinished_request_behind_another_ends_a_connection(second: bytes) -> None:
    async def slow() -> None:
        async with listening(_read_first) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(WHOLE + second)
            assert await reader.readuntil(b"here")
            await _until_closed(reader, writer)

    run(slow)


@pytest.mark.usefixtures("short")
def test_an_answer_that_takes_long_is_not_cut_off() -> None:
    async def wait() -> None:
        async with listening(_late) as (port, _):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for _ in range(2):
                writer.write(WHOLE)
                assert await reader.readuntil(b"here")
            writer.close()

    run(wait)


@pytest.mark.usefixtures("short")
def test_an_answer_that_nobody_reads_ends_a_connection() -> None:
    async def wait() -> None:
        async with listening(_large) as (port, state):
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(WHOLE)
                loop = asyncio.get_running_loop()
                until = loop.time() + END_S_MAX
                while not state.connections:  # noqa: ASYNC110 - it is uvicorn that counts
                    await asyncio.sleep(0.01)
                while state.connections:
                    assert loop.time() < until, "it is still open"
                    await asyncio.sleep(0.05)

    run(wait)


def test_connections_that_come_at_once_are_all_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All wait in the kernel before the first is accepted."""
    monkeypatch.setattr(descriptors, "CONNECTIONS_MAX", 100)
    made = certificates(tmp_path)
    tls = DoorTls(TlsSettings.model_validate(made.tls()), "security.tls", FakeClock())

    async def crowd() -> int:
        state, config = ServerState(), uvicorn.Config(_answered, log_config=None, lifespan="off")
        with socket.create_server(("127.0.0.1", 0), backlog=512) as door:
            clients = [socket.create_connection(door.getsockname()) for _ in range(200)]
            most = 0
            listener = SecureListener(door, tls, lambda: SecureHttp(config, state, {}), state.connections)
            for _ in range(300):
                await asyncio.sleep(0.001)
                most = max(most, len(state.connections))
            await listener.close()
            for client in clients:
                client.close()
        return most

    assert asyncio.run(asyncio.wait_for(crowd(), 30)) <= connections_max() == 100

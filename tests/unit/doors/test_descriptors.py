"""Connections to a door leave descriptors for the log."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator

import pytest
import uvicorn
from uvicorn.server import ServerState

from frazil.doors import descriptors
from frazil.doors.descriptors import SHARES, BoundedHttp, connections_max, raise_limit


@pytest.fixture(autouse=True)
def the_limit_as_it_was() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def _limit(soft: int) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    _limit(256)
    raise_limit()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert soft == hard


async def _answer(scope: object, receive: object, send: object) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})  # type: ignore[operator]
    await send({"type": "http.response.body", "body": b"here"})  # type: ignore[operator]


def test_connections_may_use_a_share_of_the_descriptors() -> None:
    _limit(256)
    assert connections_max() == 256 // SHARES


def test_idle_connections_take_no_more_than_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(descriptors, "CONNECTIONS_MAX", 51)

    async def crowd() -> tuple[list[bytes], bytes]:
        state = ServerState()
        config = uvicorn.Config(_answer, log_config=None, lifespan="off")  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        door = await loop.create_server(lambda: BoundedHttp(config, state, {}), "127.0.0.1", 0)
        port = door.sockets[0].getsockname()[1]
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(connections_max())]
        while len(state.connections) < len(idle):  # noqa: ASYNC110 - it is uvicorn that counts
            await asyncio.sleep(0)
        refused = []
        for _ in range(20):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            refused.append(await reader.read())
            writer.close()
        idle.pop()[1].close()
        while len(state.connections) > len(idle):  # noqa: ASYNC110 - it is uvicorn that counts
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        answered = await reader.read()
        for _, one in [*idle, (reader, writer)]:
            one.close()
        door.close()
        return refused, answered

    refused, answered = asyncio.run(asyncio.wait_for(crowd(), 30))
    assert all(each.startswith(b"HTTP/1.1 503 ") and b'"limit": 51' in each for each in refused)
    assert b"here" in answered

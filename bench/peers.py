"""Redis Streams and NATS JetStream as peers: real servers that sync before each answer, and 128 connections to each."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import nats
import redis.asyncio

CONNECTIONS = 128
PARTS = Path(__file__).resolve().parents[1] / ".uv" / "parts"
Send = Callable[[bytes], Awaitable[object]]


async def rate(senders: list[Send], message: bytes, seconds: float) -> float:
    """Answered messages a second, each sender with one on its way."""
    started = time.perf_counter()
    done = 0

    async def go(send: Send) -> None:
        nonlocal done
        while time.perf_counter() - started < seconds:
            await send(message)
            done += 1

    await asyncio.gather(*(go(send) for send in senders))
    return done / (time.perf_counter() - started)


async def redis_rate(port: int, message: bytes, seconds: float) -> float:
    clients = [redis.asyncio.Redis(port=port, single_connection_client=True) for _ in range(CONNECTIONS)]
    try:
        return await rate([lambda data, one=one: one.xadd("bench", {"p": data}) for one in clients], message, seconds)
    finally:
        for one in clients:
            await one.aclose()


async def nats_rate(port: int, message: bytes, seconds: float) -> float:
    clients = [await nats.connect(f"nats://127.0.0.1:{port}") for _ in range(CONNECTIONS)]
    try:
        streams = [one.jetstream() for one in clients]
        await streams[0].add_stream(name="bench", subjects=["bench"])
        return await rate([lambda data, one=one: one.publish("bench", data) for one in streams], message, seconds)
    finally:
        for one in clients:
            await one.close()


@contextlib.contextmanager
def redis_server(where: Path) -> Iterator[int]:
    where.mkdir()
    port = _free_port()
    options = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(where), "--save", ""]
    options += ["--appendonly", "yes", "--appendfsync", "always"]
    with _running([str(PARTS / "redis-server"), *options], port):
        yield port


@contextlib.contextmanager
def nats_server(where: Path) -> Iterator[int]:
    where.mkdir()
    port = _free_port()
    config = where / "nats.conf"
    store = f'jetstream {{ store_dir: "{where}", sync_interval: always }}'
    config.write_text(f'host: "127.0.0.1"\nport: {port}\n{store}\n', encoding="utf-8")
    with _running([str(PARTS / "nats-server"), "--config", str(config)], port):
        yield port


@contextlib.contextmanager
def _running(command: list[str], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(200):
            if process.poll() is not None:
                sys.exit(f"{command[0]} ended at once")
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(20)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])

"""gRPC's health service and reflection: everyone may call them, so what a caller can hold there is limited."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection_pb2 as pb

from frazil.doors import public_services
from frazil.doors.public_services import REQUEST_BYTES_MAX, STREAMS_MAX
from parts.secured import SecuredDoors, secured

WATCH, CHECK = "/grpc.health.v1.Health/Watch", "/grpc.health.v1.Health/Check"
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


async def code_of(read: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await asyncio.wait_for(read, 10)
    return refused.value.code()


async def limited(doors: SecuredDoors, door: str) -> None:
    channel: Any = doors.channels[door]  # without credentials

    async def idle() -> AsyncIterator[bytes]:
        yield pb.ServerReflectionRequest(list_services="").SerializeToString()
        await asyncio.Event().wait()

    def watch(name: str = "") -> Any:
        return channel.unary_stream(WATCH)(health_pb2.HealthCheckRequest(service=name).SerializeToString())

    def reflect() -> Any:
        return channel.stream_stream(REFLECTION)(idle())

    large = health_pb2.HealthCheckRequest(service="x" * REQUEST_BYTES_MAX).SerializeToString()
    assert await code_of(channel.unary_stream(WATCH)(large).read()) is grpc.StatusCode.INVALID_ARGUMENT
    assert await code_of(channel.unary_unary(CHECK)(large)) is grpc.StatusCode.INVALID_ARGUMENT
    long = pb.ServerReflectionRequest(file_by_filename="x" * REQUEST_BYTES_MAX).SerializeToString()
    assert await code_of(channel.stream_stream(REFLECTION)(iter([long])).read()) is grpc.StatusCode.INVALID_ARGUMENT
    for begin in (watch, reflect):
        held = [begin() for _ in range(STREAMS_MAX)]
        for one in held:
            assert await one.read()
        assert await code_of(begin().read()) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await channel.unary_unary(CHECK)(b"")
        for one in held:
            one.cancel()
        async with asyncio.timeout(10):  # each try takes a round trip
            while not await again(begin):
                pass


async def again(begin: Any) -> bool:
    call = begin()
    try:
        return bool(await call.read())
    except grpc.aio.AioRpcError:
        return False
    finally:
        call.cancel()


def test_what_a_caller_without_credentials_holds_is_limited(tmp_path: Path) -> None:
    async def work() -> None:
        async with secured(tmp_path) as doors:
            await limited(doors, "danube")
            await limited(doors, "admin")

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_stream_of_reflection_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(public_services, "REFLECTION_SECONDS_MAX", 0.2)

    async def work() -> None:
        async with secured(tmp_path) as doors:
            channel: Any = doors.channels["danube"]

            async def idle() -> AsyncIterator[bytes]:
                await asyncio.Event().wait()
                yield b""

            assert await code_of(channel.stream_stream(REFLECTION)(idle()).read()) is grpc.StatusCode.DEADLINE_EXCEEDED

    asyncio.run(asyncio.wait_for(work(), 60))

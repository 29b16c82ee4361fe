"""The request of an unknown caller is not received: many large ones at once take no memory of the server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

from frazil.core.settings import MIB
from parts.secured_server import SecuredServer

CALLS, GROWTH_BYTES_MAX = 40, 120 * MIB


async def refusals(server: SecuredServer, header: str | None) -> set[grpc.StatusCode]:
    message = pb.StreamMessage(msg_id=pb.MsgID(producer_id=1, topic_name="/default/t"), payload=bytes(10 * MIB))
    metadata = None if header is None else [("authorization", header)]
    address, trusted = server.url.removeprefix("https://"), server.channel_credentials()
    options = [("grpc.max_send_message_length", -1)]

    async def one(stub: stubs.ProducerServiceStub) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await stub.SendMessage(message, metadata=metadata, timeout=60)
        return refused.value.code()

    async with grpc.aio.secure_channel(address, trusted, options) as channel:
        stub = stubs.ProducerServiceStub(channel)
        return set(await asyncio.gather(*(one(stub) for _ in range(CALLS))))


def test_large_requests_of_unknown_callers_are_not_received(tmp_path: Path) -> None:
    server = SecuredServer(tmp_path)
    server.start()
    try:
        assert server.process is not None
        process = psutil.Process(server.process.pid)
        before = process.memory_info().rss
        for header in (None, "Bearer frz_aaaaaaaaaaaa_wrong", "Basic x"):
            codes = asyncio.run(asyncio.wait_for(refusals(server, header), 90))
            assert codes == {grpc.StatusCode.UNAUTHENTICATED}, header
            assert process.memory_info().rss - before < GROWTH_BYTES_MAX, header
    finally:
        server.kill()

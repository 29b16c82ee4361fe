"""The limit on calls of a gRPC service: one too many is refused at once, and named."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import pytest

from frazil.broker.counts import BrokerCounts
from frazil.core.errors import ListenFailed, TooManyCalls
from frazil.serve import danube_admin_pb2 as pb
from frazil.serve.grpc_calls import CallLimit, GrpcServer, check_free, unary

METHOD = "/danube_admin.BrokerAdmin/ListBrokers"


def test_a_limit_counts_those_under_way() -> None:
    limit = CallLimit("broker.calls_max", 2)
    limit.enter()
    limit.enter()
    with pytest.raises(TooManyCalls, match=r"2 calls are under way, the limit of broker\.calls_max"):
        limit.enter()
    limit.leave()
    limit.enter()


async def one_too_many() -> None:
    counts, limit = BrokerCounts(), CallLimit("broker.calls_max", 2)
    arrived, go_on = asyncio.Semaphore(0), asyncio.Event()

    async def answer(_: Any) -> Any:
        arrived.release()
        await go_on.wait()
        return pb.BrokerListResponse()

    server = GrpcServer(1_000, 10)
    handlers = {"ListBrokers": unary(answer, pb.Empty, counts, limit)}
    address = server.listen("127.0.0.1", 0, "a setting")
    await server.start((grpc.method_handlers_generic_handler("danube_admin.BrokerAdmin", handlers),), (pb.DESCRIPTOR,))
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(METHOD, pb.Empty.SerializeToString, pb.BrokerListResponse.FromString)
        first = [asyncio.ensure_future(_answered(call)) for _ in range(2)]
        for _ in first:
            await asyncio.wait_for(arrived.acquire(), 10)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await call(pb.Empty(), timeout=10)
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "broker.calls_max" in (refused.value.details() or "")
        assert counts.refused["too_many_calls"] == 1
        go_on.set()
        assert await asyncio.gather(*first) == [pb.BrokerListResponse()] * 2
        await _answered(call)
    await server.stop()


async def _answered(call: Any) -> Any:
    return await call(pb.Empty(), timeout=10)


def test_one_call_too_many_is_refused_and_the_others_are_answered() -> None:
    asyncio.run(asyncio.wait_for(one_too_many(), 30))


def test_a_port_that_is_taken_is_named_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        host, port = taken.getsockname()
        with pytest.raises(ListenFailed, match="choose another port with --admin-port"):
            check_free(host, port, "--admin-port")
    check_free(host, port, "--admin-port")

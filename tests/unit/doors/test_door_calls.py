"""Calls of gRPC doors: limits, errors as statuses and request ids are the same for calls of every form."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio
import pytest

from frazil.broker.counts import BrokerCounts
from frazil.core.errors import ListenFailed, TooManyCalls, TopicNotFound
from frazil.doors.admission import BY_HANDLER, IDENTIFIED
from frazil.doors.calls import CallLimit, Context, ErrorStatus, Method, Rules, Streams, service
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.doors.described_server import DescribedServer
from frazil.doors.grpc_server import GrpcServer
from frazil.doors.listen import check_free
from frazil.node.access.gate import OpenGate
from frazil.node.request_ids import HEADER

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

    server = DescribedServer(1_000, 10)
    table = [Method("ListBrokers", pb.Empty, answer, IDENTIFIED, pb.BrokerListResponse)]
    rules = Rules(OpenGate(), limit, refused=counts.refuse)
    address = server.listen("127.0.0.1", 0, "a setting")
    await server.start_described([service("danube_admin.BrokerAdmin", table, rules)], (pb.DESCRIPTOR,))
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


# --- calls of every form


@contextlib.asynccontextmanager
async def serving(*methods: Method, rules: Rules) -> AsyncIterator[grpc.aio.Channel]:
    server = GrpcServer(1_000, 10)
    address = server.listen("127.0.0.1", 0, "a setting")
    await server.start([service("test.Service", methods, rules)])
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            yield channel
    finally:
        await server.stop(0)


async def one(_: Any) -> Any:
    raise TopicNotFound("/default/absent")


async def some(_: Any, context: Context) -> None:
    await context.write(b"first")
    raise TopicNotFound("/default/absent")


async def all_of_them(context: Context) -> None:
    await context.write(await context.read())
    raise TopicNotFound("/default/absent")


def call_of(channel: Any, method: Method, raw: bytes = b"") -> Any:
    path, metadata = f"/test.Service/{method.name}", ((HEADER, "an-id"),)
    if method.streams is Streams.NONE:
        return channel.unary_unary(path)(raw, metadata=metadata, timeout=10)
    if method.streams is Streams.ANSWERS:
        return channel.unary_stream(path)(raw, metadata=metadata, timeout=10)
    return channel.stream_stream(path)(iter([raw or b"first"]), metadata=metadata, timeout=10)


async def outcome(call: Any) -> tuple[list[bytes], grpc.StatusCode, str, dict[str, Any]]:
    """The answers, and how the call ended."""
    found = []
    try:
        if hasattr(call, "__aiter__"):
            async for answer in call:
                found.append(answer)
        else:
            found.append(await call)
    except grpc.aio.AioRpcError as error:
        return found, error.code(), error.details() or "", dict(error.trailing_metadata())
    return found, await call.code(), await call.details(), dict(await call.trailing_metadata())


FORMS = [
    Method("One", pb.Empty, one, IDENTIFIED),
    Method("Some", pb.Empty, some, IDENTIFIED, streams=Streams.ANSWERS),
    Method("All", lambda raw: raw, all_of_them, BY_HANDLER, streams=Streams.BOTH),
]


@pytest.mark.parametrize("method", FORMS, ids=lambda method: method.name)
def test_an_error_is_its_status_in_every_form_of_call(method: Method) -> None:
    async def work() -> None:
        refused: list[str] = []
        rules = Rules(OpenGate(), refused=lambda error: refused.append(error.code))
        async with serving(method, rules=rules) as channel:
            answers, code, details, trailers = await outcome(call_of(channel, method))
        assert answers == ([] if method.streams is Streams.NONE else [b"first"])
        assert (code, refused) == (grpc.StatusCode.NOT_FOUND, ["topic_not_found"])
        assert "/default/absent" in details
        assert trailers[HEADER] == "an-id"

    asyncio.run(asyncio.wait_for(work(), 30))


@pytest.mark.parametrize("streams", Streams)
def test_a_call_whose_client_has_not_cancelled_it_is_never_told_that_it_has(streams: Streams) -> None:
    """Something that it waited for was cancelled: clients repeat the call, as after any passing failure."""

    async def interrupted(*_: Any) -> None:
        work = asyncio.ensure_future(asyncio.sleep(60))
        asyncio.get_running_loop().call_soon(work.cancel)
        await work

    async def work() -> None:
        refused: list[str] = []
        rules = Rules(OpenGate(), refused=lambda error: refused.append(error.code))
        method = Method("Broken", lambda raw: raw, interrupted, BY_HANDLER, streams=streams)
        async with serving(method, rules=rules) as channel:
            answers, code, details, trailers = await outcome(call_of(channel, method))
        assert (answers, code) == ([], grpc.StatusCode.UNAVAILABLE)
        assert "try again" in details
        assert trailers[HEADER] == "an-id"
        assert len(refused) == 1

    asyncio.run(asyncio.wait_for(work(), 30))


@pytest.mark.parametrize("streams", [Streams.NONE, Streams.ANSWERS])
def test_a_call_that_its_client_cancels_ends_at_once(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        begun, ended = asyncio.Event(), asyncio.Event()

        async def waits(*_: Any) -> None:
            begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        method = Method("Waits", lambda raw: raw, waits, BY_HANDLER, streams=streams)
        async with serving(method, rules=Rules(OpenGate())) as channel:
            call = call_of(channel, method)
            await asyncio.wait_for(begun.wait(), 10)
            call.cancel()
            await asyncio.wait_for(ended.wait(), 10)
        assert not caplog.records

    asyncio.run(asyncio.wait_for(work(), 30))


@pytest.mark.parametrize("streams", [Streams.NONE, Streams.ANSWERS])
def test_a_request_that_is_none_is_an_invalid_argument(streams: Streams) -> None:
    async def never(*_: Any) -> None:
        raise AssertionError("it must not be asked")

    async def work() -> None:
        method = Method("Any", pb.BrokerRequest, never, IDENTIFIED, streams=streams)
        async with serving(method, rules=Rules(OpenGate())) as channel:
            answers, code, details, _ = await outcome(call_of(channel, method, b"\xff" * 10))
        assert (answers, code) == ([], grpc.StatusCode.INVALID_ARGUMENT)
        assert details == "the request is not a valid BrokerRequest"

    asyncio.run(asyncio.wait_for(work(), 30))


@pytest.mark.parametrize("ends", [grpc.aio.InternalError, grpc.aio.AbortError])
def test_a_call_that_has_ended_before_its_status_was_sent_leaves_no_line_in_the_log(ends: Any) -> None:
    """gRPC refuses a message that is too large by itself, and logs what a handler raises but its own `AbortError`."""

    class Ended:
        def invocation_metadata(self) -> tuple[()]:
            return ()

        async def abort(self, *_: Any) -> None:
            raise ends("it has ended")

    async def answer(_: Any) -> Any:
        raise TopicNotFound("/shop/orders")

    method = Method("ListBrokers", pb.Empty, answer, IDENTIFIED, pb.BrokerListResponse)
    table = service("danube_admin.BrokerAdmin", [method], Rules(OpenGate()))
    found = table.service(SimpleNamespace(method=METHOD, invocation_metadata=()))
    raised = grpc.aio.AbortError if ends is grpc.aio.AbortError else asyncio.CancelledError
    with pytest.raises(raised):
        asyncio.run(found.unary_unary(pb.Empty(), Ended()))


@pytest.mark.parametrize("streams", [Streams.NONE, Streams.ANSWERS])
def test_of_an_error_of_our_own_a_client_learns_nothing(streams: Streams, caplog: pytest.LogCaptureFixture) -> None:
    async def broken(*_: Any) -> None:
        raise RuntimeError("a secret")

    async def work() -> None:
        method = Method("Broken", pb.Empty, broken, IDENTIFIED, streams=streams)
        async with serving(method, rules=Rules(OpenGate())) as channel:
            _, code, details, _ = await outcome(call_of(channel, method))
        assert (code, details) == (grpc.StatusCode.INTERNAL, "internal error; see the server's log")

    asyncio.run(asyncio.wait_for(work(), 30))
    assert "Broken failed" in caplog.text
    assert "a secret" in caplog.text


def test_a_method_may_have_a_limit_and_a_way_to_tell_errors_of_its_own() -> None:
    async def work() -> None:
        full = CallLimit("streams_max", 0)
        method = Method(
            "Some",
            pb.Empty,
            some,
            IDENTIFIED,
            streams=Streams.ANSWERS,
            limit=full,
            error_mapping=lambda error: ErrorStatus(grpc.StatusCode.UNKNOWN, (("code", error.code),)),
        )
        async with serving(method, rules=Rules(OpenGate())) as channel:
            answers, code, details, trailers = await outcome(call_of(channel, method))
        assert (answers, code, trailers["code"]) == ([], grpc.StatusCode.UNKNOWN, "too_many_calls")
        assert "streams_max" in details

    asyncio.run(asyncio.wait_for(work(), 30))

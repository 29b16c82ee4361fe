"""Each call has an id: the caller's own or one of ours, in the answer and in the log lines that it causes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc.aio
import httpx
import pyarrow.flight
import pytest
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

import frazil
from parts.danube import Server

CORRUPT = "/default/corrupt"
NAME = "x-request-id"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("requests")
    with frazil.open(folder / "data") as storage:
        storage.topic(CORRUPT).publish("x")
    (segment,) = (folder / "data" / "log" / "default" / "corrupt").glob("*.wal")
    segment.write_bytes(b"\xff" * 64 + segment.read_bytes()[64:])
    server = Server(folder)
    server.start()
    try:
        yield server
    finally:
        server.kill()


def lines_of(server: Server, request_id: str) -> list[str]:
    return [line for line in server.log().splitlines() if line.endswith(f"(request {request_id})")]


def test_an_http_answer_has_the_id_that_was_given(server: Server) -> None:
    path = f"/v1/topics{CORRUPT}/retention"
    answer = httpx.put(f"{server.http}{path}", json={"age_ms": 1}, headers={NAME: "from-the-test:1"}, timeout=30)
    assert (answer.status_code, answer.headers[NAME]) == (500, "from-the-test:1")
    (line,) = lines_of(server, "from-the-test:1")
    assert f"PUT {path}" in line


@pytest.mark.parametrize("given", [None, "", "two words", "x" * 129, 'a"b', "ü".encode("latin-1")])
def test_an_http_answer_has_a_new_id_where_none_that_is_sane_was_given(server: Server, given: Any) -> None:
    headers = {} if given is None else {NAME: given}
    made = [httpx.get(f"{server.http}/health/live", headers=headers, timeout=30).headers[NAME] for _ in range(2)]
    assert all(len(one) == 16 and int(one, 16) >= 0 for one in made)
    assert made[0] != made[1]


def test_a_grpc_answer_has_the_id_that_was_given_and_an_error_always_has_one(server: Server) -> None:
    async def work() -> None:
        async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
            producers = stubs.ProducerServiceStub(channel)
            request = pb.ProducerRequest(topic_name="/default/fine", producer_name="p", dispatch_strategy=pb.Reliable)
            call = producers.CreateProducer(request, metadata=((NAME, "good-1"),))
            await call
            assert dict(await call.trailing_metadata())[NAME] == "good-1"
            quiet = producers.CreateProducer(request)
            await quiet
            assert NAME not in dict(await quiet.trailing_metadata()), "nothing is made where nothing is to be told"
            request.topic_name = CORRUPT
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await producers.CreateProducer(request)
            assert refused.value.code() is grpc.StatusCode.INTERNAL
            made = dict(refused.value.trailing_metadata())[NAME]
            (line,) = lines_of(server, made)
            assert "corrupt" in line

    asyncio.run(asyncio.wait_for(work(), 60))


def test_a_flight_answer_has_the_id_that_was_given(server: Server) -> None:
    seen: list[str] = []

    class Reading(pyarrow.flight.ClientMiddleware):  # type: ignore[misc]
        def sending_headers(self) -> dict[str, str]:
            return {NAME: "flight-1"}

        def received_headers(self, headers: dict[str, list[str]]) -> None:
            seen.extend(headers.get(NAME, []))

    class Factory(pyarrow.flight.ClientMiddlewareFactory):  # type: ignore[misc]
        def start_call(self, info: object) -> Reading:
            return Reading()

    with pyarrow.flight.connect(server.flight, middleware=[Factory()]) as client:
        list(client.do_action(pyarrow.flight.Action("logs", b"")))
        assert seen == ["flight-1"]
        with pytest.raises(pyarrow.flight.FlightError):
            list(client.do_action(pyarrow.flight.Action("nothing", b"")))
        assert set(seen) == {"flight-1"}
    with pyarrow.flight.connect(server.flight) as client:
        assert list(client.do_action(pyarrow.flight.Action("logs", b"")))

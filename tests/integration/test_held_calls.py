"""Calls that hold a place on a door without saying what they want, or without reading the answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.doors import admission, calls
from frazil.doors.calls import write_in_time
from frazil.doors.flight import flight_pb2 as flight
from frazil.doors.flight.subscriptions import _take_answers
from frazil.doors.flight.wire import Received
from parts.processes import pause
from parts.secured import SecuredDoors, secured

SERVICE = "arrow.flight.protocol.FlightService"
TOPIC = "/shop/orders"
STREAMS_MAX = 8
MANY = 200
"""More than the door has places for, of each method."""
METHODS = "ListFlights", "GetFlightInfo", "GetSchema", "ListActions", "DoAction", "DoGet"


def run(folder: Path, work: Callable[[SecuredDoors], Awaitable[None]], **quota: int) -> None:
    async def inside() -> None:
        sections: dict[str, Any] = {"security": {"enabled": True, "quota": quota}}
        async with secured(folder, flight={"port": 0, "streams_max": STREAMS_MAX}, **sections) as doors:
            await doors.node.create_topic(LOCAL, TopicName.parse(TOPIC))
            await asyncio.wait_for(work(doors), 60)

    asyncio.run(inside())


def hold(doors: SecuredDoors, key: str, method: str) -> Any:
    """Begin a call and send no request."""

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    channel: Any = doors.channels["flight"]
    return channel.stream_stream(f"/{SERVICE}/{method}")(nothing(), metadata=(("authorization", f"Bearer {key}"),))


async def topics(doors: SecuredDoors, key: str) -> list[str]:
    channel: Any = doors.channels["flight"]
    request = flight.Action(type="topics").SerializeToString()
    metadata = (("authorization", f"Bearer {key}"),)
    answer = await channel.unary_stream(f"/{SERVICE}/DoAction")(request, metadata=metadata, timeout=20).read()
    found: list[str] = json.loads(flight.Result.FromString(answer).body)
    return found


async def ended(call: Any) -> grpc.StatusCode:
    code: grpc.StatusCode = await asyncio.wait_for(call.code(), 20)
    return code


@pytest.mark.parametrize("method", METHODS)
def test_a_caller_cannot_take_all_places_of_a_door(tmp_path: Path, method: str) -> None:
    async def work(doors: SecuredDoors) -> None:
        greedy, other = await doors.key(), await doors.key(("reader", "/shop/*"))
        for key in (greedy, other):
            await topics(doors, key)  # its key is known then
        held = [hold(doors, greedy, method) for _ in range(2 * MANY)]
        codes = [await ended(one) for one in held[-MANY:]]
        assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
        assert await topics(doors, other) == [TOPIC]
        for one in held:
            one.cancel()
        held.clear()

    run(tmp_path / "data", work)


def test_a_call_without_its_request_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "READ_SECONDS_MAX", 0.5)

    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("reader", "/shop/*"))
        assert await topics(doors, key) == [TOPIC]
        began = time.monotonic()
        codes = await asyncio.gather(*(ended(hold(doors, key, method)) for method in METHODS))
        assert set(codes) == {grpc.StatusCode.UNAVAILABLE}
        assert time.monotonic() - began < 10
        assert await topics(doors, key) == [TOPIC]

    run(tmp_path / "data", work)


def test_a_call_without_its_request_counts_as_one(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("reader", "/shop/*"))
        held = [hold(doors, key, "GetFlightInfo") for _ in range(12)]
        done, _ = await asyncio.wait([asyncio.ensure_future(one.code()) for one in held], timeout=3)
        assert sorted({one.result() for one in done}, key=str) == [grpc.StatusCode.RESOURCE_EXHAUSTED]
        assert len(done) >= 2
        for one in held:
            one.cancel()

    run(tmp_path / "data", work, requests_per_second=10)


def test_a_request_counts_once(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("reader", "/shop/*"))
        assert await asyncio.gather(*(topics(doors, key) for _ in range(50))) == [[TOPIC]] * 50

    run(tmp_path / "data", work, requests_per_second=50)


def test_an_answer_that_nobody_reads_ends_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WRITE_SECONDS_MAX", 0.05)

    class Stalled:
        async def write(self, _: Any) -> None:
            await asyncio.Event().wait()

    async def work() -> None:
        with pytest.raises(asyncio.CancelledError):
            await write_in_time(Stalled(), b"")

    asyncio.run(asyncio.wait_for(work(), 10))


def test_a_process_that_was_paused_while_it_answered_does_not_end_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "WRITE_SECONDS_MAX", 1.0)
    read = asyncio.Event()

    class Reading:
        async def write(self, _: Any) -> None:
            await read.wait()

    async def work() -> None:
        loop = asyncio.get_running_loop()
        writing = asyncio.create_task(write_in_time(Reading(), b""))
        await asyncio.sleep(0)
        pause(1.5)  # nothing of this process runs, as after SIGSTOP
        loop.call_later(0.05, read.set)
        await writing

    asyncio.run(asyncio.wait_for(work(), 10))


def test_the_answers_of_a_consumer_count_as_bytes() -> None:
    taken: list[int] = []
    given: list[int] = []

    class Rights:
        async def give(self, size_bytes: int) -> None:
            given.append(size_bytes)
            if len(given) == 3:
                raise EOFError

    class Subscription:
        def ack(self, offset: int, _: int | None) -> None:
            taken.append(offset)

    class Stream:
        async def read(self) -> Received:
            note = json.dumps({"ack": [len(given)]}).encode()
            return Received(b"", (), b"", note, b"", len(note))

    async def work() -> None:
        with pytest.raises(EOFError):
            await _take_answers(Subscription(), Stream(), Rights())  # type: ignore[arg-type] # as much as it uses

    asyncio.run(work())
    assert given == [len('{"ack": [0]}')] * 3
    assert taken == [0, 1]

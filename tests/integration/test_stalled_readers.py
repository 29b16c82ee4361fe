"""Streams whose client stops reading: they end with their rights all the same, on every door."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.doors.calls import Method
from frazil.doors.danube.proto import DanubeApi_pb2 as pb
from frazil.doors.flight import flight_pb2 as flight
from parts.secured import SecuredDoors, key_id, secured

TOPIC = "/shop/orders"
ROWS, ROW_BYTES = 48, 1024 * 1024
"""Far more than gRPC and the kernel buffer."""
ENDED_SECONDS_MAX = 3.0
"""A change is known within a second; then come a look and a cut, each within half a second."""
FLIGHT = "arrow.flight.protocol.FlightService"
ENDLESS_ROWS = """
import sys, pyarrow as pa
rows = pa.record_batch([pa.array([b"x" * 1_000_000])], names=["a"])
with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
    while True:
        stream.write_batch(rows)
"""

Begin = Callable[[SecuredDoors, str], Awaitable[Any]]


def method_of(doors: SecuredDoors, door: str, name: str) -> tuple[str, Method]:
    return next((service, one) for service, methods in doors.tables()[door] for one in methods if one.name == name)


async def ticket(doors: SecuredDoors, key: str, wanted: dict[str, Any]) -> Any:
    service, method = method_of(doors, "flight", "DoGet")
    request = flight.Ticket(ticket=json.dumps(wanted).encode()).SerializeToString()
    return doors.call("flight", service, method, [request], key)


async def with_notes(doors: SecuredDoors, key: str) -> Any:
    return await ticket(doors, key, {"read": {"topic": TOPIC, "follow": True}})


async def plain(doors: SecuredDoors, key: str) -> Any:
    return await ticket(doors, key, {"read": {"topic": TOPIC, "follow": True, "notes": False}})


async def a_range(doors: SecuredDoors, key: str) -> Any:
    log_id = doors.node.topic(LOCAL, TOPIC).log.log_id
    return await ticket(doors, key, {"topic": TOPIC, "log_id": log_id, "start": 0, "end": ROWS})


async def query(doors: SecuredDoors, key: str) -> Any:
    doors.node._command = lambda *_: [sys.executable, "-c", ENDLESS_ROWS]
    return await ticket(doors, key, {"sql": {"query": "select 1"}})


async def exchange(doors: SecuredDoors, key: str) -> Any:
    asked = {"topic": TOPIC, "subscription": "s", "kind": "shared", "consumer": "c"}
    kind = flight.FlightDescriptor(type=2, cmd=json.dumps(asked).encode())
    first = flight.FlightData(flight_descriptor=kind).SerializeToString()

    async def messages() -> Any:
        yield first
        await asyncio.Event().wait()

    channel: Any = doors.channels["flight"]
    return channel.stream_stream(f"/{FLIGHT}/DoExchange")(messages(), metadata=(("authorization", f"Bearer {key}"),))


async def receive(doors: SecuredDoors, key: str) -> Any:
    service, method = method_of(doors, "danube", "Subscribe")
    asked = pb.ConsumerRequest(topic_name=TOPIC, consumer_name="c", subscription="s", subscription_type=1)
    answer = await doors.call("danube", service, method, [asked.SerializeToString()], key)
    number = pb.ConsumerResponse.FromString(answer).consumer_id
    service, method = method_of(doors, "danube", "ReceiveMessages")
    return doors.call("danube", service, method, [pb.ReceiveRequest(consumer_id=number).SerializeToString()], key)


async def until(is_so: Callable[[], bool], seconds_max: float) -> None:
    end = time.monotonic() + seconds_max
    while not is_so():
        assert time.monotonic() < end
        await asyncio.sleep(0.02)


async def rest_of(call: Any) -> tuple[int, grpc.StatusCode]:
    """Read what is still on its way. Returns its size, and the status of the call."""
    got_bytes = 0
    try:
        while (message := await call.read()) is not grpc.aio.EOF:
            got_bytes += len(message)
    except grpc.aio.AioRpcError as ended:
        return got_bytes, ended.code()
    return got_bytes, grpc.StatusCode.OK


@pytest.mark.parametrize("how", ["revoked", "unbound"])
@pytest.mark.parametrize("begin", [with_notes, plain, a_range, query, exchange, receive])
def test_a_reader_that_stops_reading_loses_its_stream_with_its_right(tmp_path: Path, begin: Begin, how: str) -> None:
    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("admin", "/shop/*"))
        name = f"key:{key_id(key)}"

        def open_streams() -> int:
            return doors.access.quotas._uses[name].streams

        if begin is not a_range:
            call = await begin(doors, key)
            first = asyncio.ensure_future(call.read())
        for _ in range(ROWS):
            await doors.node.publish(LOCAL, TOPIC, [b"x" * ROW_BYTES])
        if begin is a_range:
            await until(lambda: doors.node.topic(LOCAL, TOPIC).log.durable_end == ROWS, 10)
            call = await begin(doors, key)
            first = asyncio.ensure_future(call.read())
        got_bytes = len(await first)
        await asyncio.sleep(1)  # all buffers are full then
        assert open_streams() == 1
        if how == "revoked":
            await doors.revoke(key)
        else:
            await asyncio.to_thread(doors.access.bindings.remove, name, "admin", "/shop/*")
        await until(lambda: open_streams() == 0, ENDED_SECONDS_MAX)
        rest_bytes, code = await rest_of(call)
        unbound = grpc.StatusCode.UNAVAILABLE if begin is query else grpc.StatusCode.PERMISSION_DENIED
        assert code is (grpc.StatusCode.UNAUTHENTICATED if how == "revoked" else unbound)
        assert got_bytes + rest_bytes < ROWS * ROW_BYTES / 2

    async def all_of_it() -> None:
        quota = {"connections": 9}  # so that streams are counted
        async with secured(tmp_path / "data", security={"enabled": True, "quota": quota}) as doors:
            await doors.node.create_topic(LOCAL, TopicName.parse(TOPIC))
            await work(doors)

    asyncio.run(asyncio.wait_for(all_of_it(), 60))

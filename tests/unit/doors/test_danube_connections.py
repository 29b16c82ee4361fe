"""The Danube port takes so many connections and no more; clients that are connected do not notice the others."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import grpc.aio
import pytest
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

import frazil
from frazil.core.settings import make_settings
from frazil.doors.danube import door as danube
from frazil.node.node import Node
from frazil.serve.doors import Doors

LIMIT = 8
TOPIC = "/default/orders"
OWN_CONNECTION = [("grpc.use_local_subchannel_pool", 1)]
"""Else channels to one address share a connection."""


async def make_producer(channel: grpc.aio.Channel, name: str) -> int:
    request = pb.ProducerRequest(topic_name=TOPIC, producer_name=name, dispatch_strategy=pb.Reliable)
    answer = await stubs.ProducerServiceStub(channel).CreateProducer(request, timeout=20)
    return int(answer.producer_id)


async def send(channel: grpc.aio.Channel, producer: int, number: int) -> None:
    message = pb.StreamMessage(
        request_id=number,
        msg_id=pb.MsgID(producer_id=producer, topic_name=TOPIC),
        payload=b"%d" % number,
        producer_name="p",
    )
    await stubs.ProducerServiceStub(channel).SendMessage(message, timeout=20)


def test_a_connection_too_many_is_refused_and_the_others_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(danube, "connections_max", lambda: LIMIT)
    settings = make_settings({"data": tmp_path / "data", "broker": {"port": 0, "admin_port": 0}})

    async def crowd(storage: frazil.Storage) -> None:
        node = Node(storage, has_broker=True)
        doors = Doors(node)
        await doors.start()
        address = node.addresses["danube"].removeprefix("http://")
        host, port = address.split(":")
        async with grpc.aio.insecure_channel(address, OWN_CONNECTION) as channel:
            producer = await make_producer(channel, "p")
            idle = [await asyncio.open_connection(host, int(port)) for _ in range(LIMIT - 1)]
            for reader, _ in idle:
                assert await reader.read(9), "its settings frame: it was let in"
            for number in range(5):
                reader, writer = await asyncio.open_connection(host, int(port))
                assert await reader.read() == b"", "closed at once, without a byte"
                writer.close()
                await send(channel, producer, number)
            async with grpc.aio.insecure_channel(address, OWN_CONNECTION) as late:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await make_producer(late, "late")
                assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            await send(channel, producer, 5)
            idle.pop()[1].close()
            await _admitted(address)
            for _, writer in idle:
                writer.close()
        await doors.stop()

    with frazil.open(settings) as storage:
        asyncio.run(asyncio.wait_for(crowd(storage), 60))
        assert [message.payload for message in storage.topic(TOPIC).read()] == [b"%d" % number for number in range(6)]


async def _admitted(address: str) -> None:
    """The server notices a closed connection a moment later; until then it refuses.

    Each attempt has a channel of its own: on a busy machine, one whose first attempts were refused may not notice for
    a minute that it is connected.
    """
    while True:
        async with grpc.aio.insecure_channel(address, OWN_CONNECTION) as late:
            try:
                await make_producer(late, "late")
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
            else:
                return
        await asyncio.sleep(0.05)

"""The broker with its metadata in a real etcd that is killed or stops answering: publishing goes on, what can't be
done is told, and all is stored once etcd is back."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
from danube.producer import Producer
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

from frazil.core.settings import make_settings
from frazil.meta.opening import open_meta
from parts.danube import TOPIC, Server, Subscriber, connect, producer, subscriber
from parts.etcd import Etcd, etcd_cluster, etcd_server

pytestmark = pytest.mark.timeout(180)

PROGRESS = "/persistent_storage/iceberg/subscriptions/s/default/orders"


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_server(tmp_path / "etcd") as found:
        yield found


@pytest.fixture
def server(tmp_path: Path, etcd: Etcd) -> Iterator[Server]:
    made = Server(tmp_path / "server", metadata={"type": "etcd", "endpoints": [etcd.endpoint], "timeout_ms": 1_000})
    made.start()
    yield made
    made.kill()


def stored_offset(etcd: Etcd) -> int:
    store = open_meta(make_settings({"metadata": {"type": "etcd", "endpoints": [etcd.endpoint]}}))
    try:
        found = store.get(PROGRESS)
        return -1 if found is None else int(json.loads(found.value)["offset"])
    finally:
        store.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_publishing_goes_on_without_etcd_and_progress_is_stored_when_it_is_back(
    how: str, etcd: Etcd, server: Server
) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client) as receiver:
            await sender.send(b"before")
            await receiver.take(1)
            if how == "killed":
                await asyncio.to_thread(etcd.kill)
                await without(server, sender, receiver)
                await asyncio.to_thread(etcd.start)
            else:
                with etcd.stopped():
                    await without(server, sender, receiver)
            await producer(client, name="later")
        for _ in range(300):
            if await asyncio.to_thread(stored_offset, etcd) == 11:
                break
            await asyncio.sleep(0.1)
        assert await asyncio.to_thread(stored_offset, etcd) == 11
        server.kill()
        server.start()
        async with subscriber(await connect(server)) as receiver:
            await sender.send(b"after")
            assert await receiver.texts(1) == ["after"], "it goes on behind what was acknowledged"

    asyncio.run(asyncio.wait_for(work(), 150))
    assert "Traceback" not in server.log()


async def without(server: Server, sender: Producer, receiver: Subscriber) -> None:
    for number in range(10):
        await sender.send(str(number).encode())
    assert await receiver.texts(10) == [str(number) for number in range(10)]
    request = pb.ProducerRequest(topic_name=TOPIC, producer_name="new", dispatch_strategy=pb.Reliable)
    async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as told:
            await stubs.ProducerServiceStub(channel).CreateProducer(request)
    assert told.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "metadata" in (told.value.details() or "")


def test_with_a_cluster_everything_goes_on_without_one_member(tmp_path: Path) -> None:
    async def work(server: Server, members: list[Etcd]) -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client) as receiver:
            for member in members:
                await asyncio.to_thread(member.kill)
                await producer(client, name=f"without {member.endpoint}")
                await sender.send(b"once")
                assert await receiver.texts(1) == ["once"]
                await asyncio.to_thread(member.start)

    with etcd_cluster(tmp_path / "etcd") as members:
        endpoints = [member.endpoint for member in members]
        server = Server(tmp_path / "server", metadata={"type": "etcd", "endpoints": endpoints, "timeout_ms": 9_000})
        server.start()
        try:
            asyncio.run(asyncio.wait_for(work(server, members), 150))
            assert "Traceback" not in server.log()
        finally:
            server.kill()


@pytest.mark.long
def test_for_a_minute_in_which_etcd_hangs_clients_go_on_and_who_is_new_is_answered(tmp_path: Path, etcd: Etcd) -> None:
    """With the default timeout, by which the calls of the minute would wait for one another for minutes."""

    async def subscribe(server: Server, number: int) -> tuple[grpc.StatusCode, float]:
        request = pb.ConsumerRequest(
            request_id=1, topic_name=TOPIC, consumer_name="c", subscription=f"new {number}", subscription_type=1
        )
        began = time.monotonic()
        async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
            try:
                await stubs.ConsumerServiceStub(channel).Subscribe(request)
                return grpc.StatusCode.OK, time.monotonic() - began
            except grpc.aio.AioRpcError as error:
                return error.code(), time.monotonic() - began

    async def work(server: Server) -> None:
        client = await connect(server)
        sender = await producer(client)
        sent = 0
        async with subscriber(client) as receiver:
            with etcd.stopped():
                began = time.monotonic()
                asked = [asyncio.create_task(subscribe(server, number)) for number in range(10)]
                while time.monotonic() - began < 60:
                    await asyncio.wait_for(sender.send(str(sent).encode()), 5)
                    assert await asyncio.wait_for(receiver.texts(1), 5) == [str(sent)]
                    sent += 1
                    await asyncio.sleep(0.05)
                answers = await asyncio.gather(*asked)
            assert {code for code, _ in answers} == {grpc.StatusCode.UNAVAILABLE}
            assert max(seconds for _, seconds in answers) < 45
            await sender.send(b"last")
            assert await receiver.texts(1) == ["last"]
            for _ in range(600):
                if await asyncio.to_thread(stored_offset, etcd) == sent + 1:
                    break
                await asyncio.sleep(0.1)
            assert await asyncio.to_thread(stored_offset, etcd) == sent + 1
        async with subscriber(client, subscription="new 1") as late:
            await sender.send(b"for all")
            assert await late.texts(1) == ["for all"]

    server = Server(tmp_path / "server", metadata={"type": "etcd", "endpoints": [etcd.endpoint]})
    server.start()
    try:
        asyncio.run(asyncio.wait_for(work(server), 170))
        assert "Traceback" not in server.log()
    finally:
        server.kill()

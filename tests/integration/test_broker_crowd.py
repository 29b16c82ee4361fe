"""Many clients at once, and such as behave badly: the others notice nothing, and the server's memory stays bounded."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc.aio
import psutil
import pytest
from danube.consumer import SubType
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

from parts.danube import Server, connect, producer, serving, subscriber

MIB = 1024 * 1024
PAYLOAD = bytes(10_000)
GROWTH_MIB_MAX = 400

VANISHING = """
import asyncio, sys
from danube.consumer import SubType
from parts.danube import Server, connect, subscriber

async def main():
    server = Server.__new__(Server)
    server.url = sys.argv[1]
    async with subscriber(await connect(server), "gone", SubType.SHARED, subscription="mixed") as receiver:
        await receiver.take(1, ack=False)
        print("has one", flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


def memory_mib(server: Server) -> float:
    assert server.process is not None
    return float(psutil.Process(server.process.pid).memory_info().rss / MIB)


@contextlib.asynccontextmanager
async def crowd(server: Server, count: int, topics: int) -> AsyncIterator[list[tuple[str, grpc.aio.UnaryStreamCall]]]:
    """Consumers by the protocol itself: a thousand stock clients would need more processors than the server."""
    async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
        consume, produce = stubs.ConsumerServiceStub(channel), stubs.ProducerServiceStub(channel)
        streams = []
        for number in range(count):
            topic = f"/crowd/t{number % topics}"
            if number < topics:
                made = pb.ProducerRequest(topic_name=topic, producer_name="p", dispatch_strategy=pb.Reliable)
                await produce.CreateProducer(made)
            request = pb.ConsumerRequest(topic_name=topic, consumer_name="c", subscription=f"s{number}")
            found = await consume.Subscribe(request)
            streams.append((topic, consume.ReceiveMessages(pb.ReceiveRequest(consumer_id=found.consumer_id))))
        try:
            yield streams
        finally:
            for _, stream in streams:
                stream.cancel()


async def meets_a_crowd(server: Server, count: int, topics: int) -> None:
    client = await connect(server)
    sender = await producer(client)
    before = memory_mib(server)
    async with (
        crowd(server, count, topics) as streams,
        subscriber(client, "never", subscription="never-reads-on") as never,
        subscriber(client, "busy", subscription="busy") as busy,
    ):
        senders = [await producer(client, f"/crowd/t{number}") for number in range(topics)]
        await asyncio.gather(*(one.send(b"hello") for one in senders))
        first = await asyncio.gather(*(asyncio.wait_for(anext(aiter(stream)), 60) for _, stream in streams))
        assert [one.msg_id.topic_name for one in first] == [topic for topic, _ in streams]
        for _ in range(50):
            await asyncio.gather(*(sender.send(PAYLOAD) for _ in range(20)))
            assert len(await busy.take(20)) == 20
        assert never.waiting() == 10
    grown = memory_mib(server) - before
    assert grown < GROWTH_MIB_MAX, f"{grown:.0f} MiB more than before"


@pytest.mark.timeout(300)
def test_a_crowd_and_one_who_never_answers(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        asyncio.run(asyncio.wait_for(meets_a_crowd(server, 150, 30), 240))
        assert server.stop() == 0
        assert "Traceback" not in server.log()


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_thousand_consumers_of_two_hundred_topics(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        asyncio.run(asyncio.wait_for(meets_a_crowd(server, 1_000, 200), 800))
        assert server.stop() == 0
        assert "Traceback" not in server.log()


@pytest.mark.timeout(120)
def test_what_a_vanished_client_had_goes_to_another_at_once(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        client = await connect(server)
        sender = await producer(client)
        child = vanishing(server)
        try:
            assert child.stdout is not None
            async with subscriber(client, "here", SubType.SHARED, subscription="mixed") as receiver:
                reading = asyncio.create_task(asyncio.to_thread(child.stdout.readline))
                while not reading.done():  # in turn: sooner or later the other has one
                    await sender.send(b"x")
                    await asyncio.sleep(0.05)
                    await receiver.take(receiver.waiting())
                os.kill(child.pid, signal.SIGKILL)
                await receiver.take(1)
        finally:
            child.kill()
            await asyncio.to_thread(child.wait, 30)
            if child.stdout is not None:
                child.stdout.close()

    with serving(tmp_path) as server:
        asyncio.run(asyncio.wait_for(work(server), 100))


def vanishing(server: Server) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen([sys.executable, "-c", VANISHING, server.url], stdout=subprocess.PIPE, env=environment)

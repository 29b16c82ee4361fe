"""What a subscription delivers, how fast consumers join it, and what it holds: part of `broker.py`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import grpc.aio
import httpx
import psutil
from danube.client import DanubeClientBuilder
from danube.consumer import SubType
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

import frazil
from measure import Figure, percentile

KIB, MIB = 1024, 1024 * 1024
MESSAGE = bytes(1024)
ROUNDS = 3
WINDOW = 1_000
JOINING, JOIN_SECONDS_MAX = 600, 1.0
HOT_MESSAGE = bytes(64 * KIB)
HOT_MESSAGES, HOT_WINDOW_BYTES, HOT_WINDOW_MESSAGES = 1_600, 8 * MIB, 10_000
HOT_SLACK_BYTES = 32 * MIB
"""What allocators, the reader's batch and the messages decoded for all may take beside the window."""


def set_window(http: str, topic: str, **policy: int) -> None:
    answer = httpx.put(f"{http}/v1/topics{topic}/subscriptions/s/policy", json=policy, timeout=30)
    answer.raise_for_status()


def over(rounds: Callable[[int], float]) -> float:
    return percentile([rounds(number) for number in range(ROUNDS)], 0.5)


async def by_danube(url: str, http: str, topic: str, count: int) -> float:
    """Messages a second that a stock client receives and acknowledges, each by a call of its own."""
    client = await DanubeClientBuilder().service_url(url).build()
    builder = client.new_consumer().with_topic(topic).with_consumer_name("c").with_subscription("s")
    consumer = builder.with_subscription_type(SubType.SHARED).build()
    await consumer.subscribe()
    set_window(http, topic, max_unacked_messages=WINDOW)
    queue = await consumer.receive()
    started = time.perf_counter()
    acks = []
    for _ in range(count):
        acks.append(asyncio.ensure_future(consumer.ack(await queue.get())))
        if len(acks) == 32:
            await asyncio.gather(*acks)
            acks.clear()
    await asyncio.gather(*acks)
    taken = time.perf_counter() - started
    await consumer.close()
    return count / taken


def by_flight(flight: str, http: str, topic: str, count: int) -> float:
    """The same over Flight, where answers go together."""
    with (
        frazil.connect(flight) as remote,
        remote.topic(topic).subscribe("s", kind="shared", consumer="c") as messages,
    ):
        set_window(http, topic, max_unacked_messages=WINDOW)
        started = time.perf_counter()
        for _ in range(count):
            messages.ack(next(messages).offset)
        return count / (time.perf_counter() - started)


def delivered(addresses: dict[str, str]) -> list[Figure]:
    http, danube, flight = (addresses[name] for name in ("address", "danube", "flight"))

    def filled(topic: str, count: int) -> str:
        """Behind a subscription that is there before: nobody waits for a producer."""
        with frazil.connect(flight) as remote:
            made = remote.topic(topic)
            with made.subscribe("s", kind="shared", consumer="c"):
                pass
            for _ in range(count // 1_000):
                made.publish_many([MESSAGE] * 1_000)
        return topic

    stock = over(lambda n: asyncio.run(by_danube(danube, http, filled(f"/bench/stock{n}", 3_000), 3_000)))
    own = over(lambda n: by_flight(flight, http, filled(f"/bench/own{n}", 20_000), 20_000))
    return [
        Figure("delivered and acknowledged, 1 KiB, one stock Danube client", f"{stock:,.0f}/s", "-", 1, "-", True),
        Figure(
            "the same, one Flight subscription, beside Danube", f"{own:,.0f}/s", f"{stock:,.0f}/s", own / stock, "≥ 1",
            own >= stock,
        ),
    ]  # fmt: skip


async def joined(danube: str, topic: str) -> tuple[float, float]:
    """Seconds in which all consumers are new to a key-shared subscription, and in which all connect to it."""
    async with grpc.aio.insecure_channel(danube.removeprefix("http://")) as channel:
        producers, consume = stubs.ProducerServiceStub(channel), stubs.ConsumerServiceStub(channel)
        await producers.CreateProducer(
            pb.ProducerRequest(topic_name=topic, producer_name="p", dispatch_strategy=pb.Reliable)
        )

        async def subscribe(number: int) -> int:
            request = pb.ConsumerRequest(
                topic_name=topic, consumer_name=f"c{number}", subscription="s", subscription_type=3
            )
            return int((await consume.Subscribe(request)).consumer_id)

        started = time.perf_counter()
        ids = await asyncio.gather(*(subscribe(number) for number in range(JOINING)))
        subscribed = time.perf_counter() - started
        started = time.perf_counter()
        streams = [consume.ReceiveMessages(pb.ReceiveRequest(consumer_id=one)) for one in ids]
        await asyncio.gather(*(stream.initial_metadata() for stream in streams))
        connected = time.perf_counter() - started
        for stream in streams:
            stream.cancel()
        return subscribed, connected


def joins(addresses: dict[str, str]) -> list[Figure]:
    times = [asyncio.run(joined(addresses["danube"], f"/bench/join{number}")) for number in range(ROUNDS)]
    subscribed, connected = (percentile([pair[at] for pair in times], 0.5) for at in (0, 1))
    limit = f"{JOIN_SECONDS_MAX:.1f} s"

    def figure(name: str, seconds: float) -> Figure:
        ratio = seconds / JOIN_SECONDS_MAX
        return Figure(f"{JOINING} key-shared consumers {name}", f"{seconds:.2f} s", limit, ratio, "≤ 1", ratio <= 1)

    return [figure("subscribe for the first time, each durably", subscribed), figure("connect", connected)]


async def hot_key(danube: str, http: str, flight: str, pid: int) -> int:
    """Bytes by which the server grows when a consumer takes nothing of a key that all messages have."""
    topic = "/bench/hot"
    async with grpc.aio.insecure_channel(danube.removeprefix("http://")) as channel:
        consume = stubs.ConsumerServiceStub(channel)
        producers = stubs.ProducerServiceStub(channel)
        await producers.CreateProducer(
            pb.ProducerRequest(topic_name=topic, producer_name="p", dispatch_strategy=pb.Reliable)
        )
        request = pb.ConsumerRequest(topic_name=topic, consumer_name="c", subscription="s", subscription_type=3)
        number = (await consume.Subscribe(request)).consumer_id
        window = {"max_unacked_bytes": HOT_WINDOW_BYTES, "max_unacked_messages": HOT_WINDOW_MESSAGES}
        await asyncio.to_thread(set_window, http, topic, **window)
        with frazil.connect(flight) as remote:
            made = remote.topic(topic)
            for _ in range(HOT_MESSAGES // 100):
                made.publish_many([frazil.Outgoing(HOT_MESSAGE, "hot")] * 100)
        await asyncio.sleep(1)
        before = psutil.Process(pid).memory_info().rss
        stream = consume.ReceiveMessages(pb.ReceiveRequest(consumer_id=number))
        await stream.read()
        await asyncio.sleep(3)
        after = psutil.Process(pid).memory_info().rss
        stream.cancel()
        return max(0, after - before)


def held(addresses: dict[str, str], pid: int) -> list[Figure]:
    grown = asyncio.run(hot_key(addresses["danube"], addresses["address"], addresses["flight"], pid))
    limit = HOT_WINDOW_BYTES + HOT_SLACK_BYTES
    name = f"memory for {HOT_MESSAGES * len(HOT_MESSAGE) // MIB} MiB of one key behind a window of 8 MiB"
    return [Figure(name, f"{grown / MIB:,.0f} MiB", f"{limit // MIB} MiB", grown / limit, "≤ 1", grown <= limit)]

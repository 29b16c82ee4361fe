"""The broker as a stock Danube client sees it, beside a bare grpc.aio server in the same run: `make bench`.

Both take turns in short rounds, so that a noisy neighbour meets both. Nothing here is a test.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import uvloop
from danube.client import DanubeClient, DanubeClientBuilder
from danube.consumer import Consumer, SubType
from danube.dispatch_strategy import DispatchStrategy
from danube.producer import Producer

import delivery
from measure import Figure, folder, percentile, report, us

HERE = Path(__file__).resolve().parent
MESSAGE = os.urandom(1024)
ROUNDS = 6
FAN_ROUNDS = 5


@contextlib.contextmanager
def frazil_serve(where: Path, door: str = "danube") -> Iterator[str]:
    """The address of one of its doors."""
    ports = ["--port", "0", "--flight-port", "0", "--broker-port", "0", "--admin-port", "0"]
    command = [sys.executable, "-m", "frazil", "serve", "--no-pipeline", "--json", "--data", str(where), *ports]
    with _running(command) as line:
        yield json.loads(line)[door]


@contextlib.contextmanager
def bare_grpc(program: str = "bare_grpc.py") -> Iterator[str]:
    """The address of one that only answers."""
    with _running([sys.executable, str(HERE / program)]) as line:
        yield line.strip()


@contextlib.contextmanager
def _running(command: list[str]) -> Iterator[str]:
    with _process(command) as (_, line):
        yield line


@contextlib.contextmanager
def _process(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """One that tells by its first line where it can be reached."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(20)
        process.stdout.close()


async def client_of(url: str) -> DanubeClient:
    return await DanubeClientBuilder().service_url(url).build()


async def producer(client: DanubeClient, topic: str) -> Producer:
    builder = client.new_producer().with_topic(topic).with_name("bench")
    made = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
    await made.create()
    return made


async def timed(sender: Producer, count: int) -> list[float]:
    taken = []
    for _ in range(count):
        started = time.perf_counter()
        await sender.send(MESSAGE)
        taken.append(time.perf_counter() - started)
    return taken


async def one_sender(ours: str, bare: str) -> list[Figure]:
    mine = await producer(await client_of(ours), "/bench/one")
    peer = await producer(await client_of(bare), "/bench/one")
    found: dict[str, list[float]] = {"mine": [], "peer": []}
    await timed(mine, 200)
    await timed(peer, 200)
    for _ in range(ROUNDS):
        found["mine"] += await timed(mine, 300)
        found["peer"] += await timed(peer, 300)
    half, limit = percentile(found["mine"], 0.5), percentile(found["peer"], 0.5)
    beside = f"one sender, 1 KiB, p50 (sync always; p99 {us(percentile(found['mine'], 0.99))}), beside bare gRPC"
    return [
        Figure("one sender, 1 KiB, p50", us(half), "1,000 µs", half / 1e-3, "< 1", half < 1e-3),
        Figure(beside, us(half), us(limit), half / limit, "-", True),
    ]


async def many_senders(ours: str, bare: str, senders: int = 32, each: int = 60) -> list[Figure]:
    mine = await producer(await client_of(ours), "/bench/many")
    peer = await producer(await client_of(bare), "/bench/many")

    async def rate(sender: Producer) -> float:
        started = time.perf_counter()
        await asyncio.gather(*(timed(sender, each) for _ in range(senders)))
        return senders * each / (time.perf_counter() - started)

    await rate(mine)
    rates = [(await rate(mine), await rate(peer)) for _ in range(ROUNDS)]
    half, limit = (percentile([pair[at] for pair in rates], 0.5) for at in (0, 1))
    return [
        Figure(f"{senders} senders, 1 KiB", f"{half:,.0f}/s", "5,000/s", half / 5_000, "≥ 1", half >= 5_000),
        Figure(f"{senders} senders, beside bare gRPC", f"{half:,.0f}/s", f"{limit:,.0f}/s", half / limit, "-", True),
    ]


@contextlib.asynccontextmanager
async def consumers(url: str, topic: str, count: int) -> AsyncIterator[list[tuple[Consumer, asyncio.Queue[object]]]]:
    client = await client_of(url)
    made = []
    for number in range(count):
        builder = client.new_consumer().with_topic(topic).with_consumer_name("c").with_subscription(f"s{number}")
        one = builder.with_subscription_type(SubType.EXCLUSIVE).build()
        await one.subscribe()
        made.append((one, await one.receive()))
    await asyncio.sleep(0.5)
    try:
        yield made
    finally:
        await asyncio.gather(*(one.close() for one, _ in made))


async def fan_out(url: str) -> list[Figure]:
    """Messages delivered and acknowledged a second, over all subscriptions together."""
    rates: dict[int, list[float]] = {5: [], 50: []}
    for number in range(FAN_ROUNDS):
        for count, found in rates.items():
            found.append(await fanned_out(url, f"/bench/fan{count}-{number}", count, 3_000 // count))
    few, many = (percentile(rates[count], 0.5) for count in (5, 50))
    name = "delivered and acknowledged, 50 subscriptions of one topic beside 5"
    return [Figure(name, f"{many:,.0f}/s", f"{few:,.0f}/s", many / few, "≥ 1", many >= few)]


async def fanned_out(url: str, topic: str, count: int, messages: int) -> float:
    sender = await producer(await client_of(url), topic)

    async def drain(one: Consumer, queue: asyncio.Queue[object]) -> None:
        for _ in range(messages):
            await one.ack(await queue.get())

    async with consumers(url, topic, count) as made:
        started = time.perf_counter()
        sending = asyncio.gather(*(sender.send(MESSAGE) for _ in range(messages)))
        await asyncio.gather(sending, *(drain(*one) for one in made))
        return count * messages / (time.perf_counter() - started)


async def tailing(url: str) -> list[Figure]:
    sender = await producer(await client_of(url), "/bench/tail")
    behind = []
    async with consumers(url, "/bench/tail", 1) as made:
        ((consumer, queue),) = made
        for _ in range(400):
            await sender.send(MESSAGE)
            acked = time.perf_counter()
            message = await queue.get()
            behind.append(time.perf_counter() - acked)
            await consumer.ack(message)
    half = percentile(behind, 0.5)
    name = "a tailing consumer has it, p50 after its ack"
    return [Figure(name, us(half), "2,000 µs", half / 2e-3, "≤ 1", half <= 2e-3)]


async def all_of(where: Path) -> list[Figure]:
    with frazil_serve(where / "data") as ours, bare_grpc() as bare:
        return [
            *await one_sender(ours, bare),
            *await many_senders(ours, bare),
            *await fan_out(ours),
            *await tailing(ours),
        ]


def deliveries(where: Path) -> list[Figure]:
    ports = ["--port", "0", "--flight-port", "0", "--broker-port", "0", "--admin-port", "0"]
    command = [sys.executable, "-m", "frazil", "serve", "--no-pipeline", "--json", "--data", str(where), *ports]
    with _process(command) as (process, line):
        addresses = json.loads(line)
        return [
            *delivery.delivered(addresses), *delivery.joins(addresses), *delivery.held(addresses, process.pid),
        ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["publishing", "delivery"], help="a part of it")
    only = parser.parse_args().only
    with folder() as where:
        figures: list[Figure] = []
        if only in (None, "publishing"):
            figures += uvloop.run(all_of(where.absolute()))
        if only in (None, "delivery"):
            figures += deliveries(where.absolute() / "delivery")
        report("The broker", figures)


if __name__ == "__main__":
    main()

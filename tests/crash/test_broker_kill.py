"""The server killed under load, with stock clients that stay up: they recover by themselves, and nothing that was
acknowledged is lost or out of order."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import defaultdict
from pathlib import Path

import pytest
from danube.consumer import SubType

import frazil
from parts.danube import TOPIC, Server, connect, producer, serving, subscriber

KEYS = 8
PAUSE_SECONDS = 0.02
"""Of a producer between two messages: without one, they take the processor from the server that starts."""
SUBSCRIPTIONS = {"exclusive": SubType.EXCLUSIVE, "shared": SubType.SHARED, "keys": SubType.KEY_SHARED}


class Load:
    """Producers that remember what was acknowledged, and consumers that remember what came."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._stop = asyncio.Event()
        self.acked: list[str] = []
        self.came: dict[str, list[tuple[int, str, str]]] = defaultdict(list)

    async def produce(self, name: str) -> None:
        sender = await producer(await connect(self._server), name=name)
        number = 0
        while not self._stop.is_set():
            text = f"{name}:{number}"
            await sender.send_with_key(text.encode(), None, f"k{number % KEYS}")
            self.acked.append(text)
            number += 1
            await asyncio.sleep(PAUSE_SECONDS)

    async def consume(self, subscription: str, name: str) -> None:
        client = await connect(self._server)
        async with subscriber(client, name, SUBSCRIPTIONS[subscription], subscription=subscription) as receiver:
            queue = receiver._queue
            while True:
                message = await queue.get()
                self.came[subscription].append(
                    (message.msg_id.topic_offset, message.routing_key, message.payload.decode())
                )
                with contextlib.suppress(Exception):  # the server may be away: then it comes again
                    await asyncio.wait_for(receiver.consumer.ack(message), 5)

    def stop(self) -> None:
        self._stop.set()

    def lacking(self) -> dict[str, int]:
        wanted = set(self.acked)
        return {name: len(wanted - {text for _, _, text in self.came[name]}) for name in SUBSCRIPTIONS}


async def kill_rounds(server: Server, rounds: int) -> Load:
    rng = random.Random(rounds)
    load = Load(server)
    await producer(await connect(server))  # makes the topic
    consumers = [
        asyncio.create_task(load.consume(subscription, f"{subscription}-{number}"))
        for subscription in SUBSCRIPTIONS
        for number in range(1 if subscription == "exclusive" else 2)
    ]
    await asyncio.sleep(1)
    producers = [asyncio.create_task(load.produce(f"p{number}")) for number in range(3)]
    for _ in range(rounds):
        await asyncio.sleep(rng.uniform(0.5, 1.5))
        before = len(load.acked)
        await asyncio.to_thread(server.kill)
        await asyncio.sleep(rng.uniform(0, 1))
        await asyncio.to_thread(server.start)
        while len(load.acked) < before + 50:  # the clients have found it again by themselves
            assert not any(task.done() for task in producers + consumers), [task for task in producers if task.done()]
            await asyncio.sleep(0.02)
    load.stop()
    await asyncio.gather(*producers)
    for _ in range(600):
        if not any(load.lacking().values()):
            break
        await asyncio.sleep(0.1)
    for task in consumers:
        task.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    return load


def check(load: Load, folder: Path) -> None:
    assert load.lacking() == dict.fromkeys(SUBSCRIPTIONS, 0)
    with frazil.open(folder / "data") as storage:
        stored = {message.offset: message.payload.decode() for message in storage.topic(TOPIC, create=False).read()}
    assert sorted(stored) == list(range(len(stored))), "offsets go on"
    assert set(load.acked) <= set(stored.values())
    for name, came in load.came.items():
        assert all(stored[offset] == text for offset, _, text in came), f"{name} got what is not in the log"
    assert_in_order([offset for offset, _, _ in load.came["exclusive"]], "exclusive")
    by_key: dict[str, list[int]] = defaultdict(list)
    for offset, key, _ in load.came["keys"]:
        by_key[key].append(offset)
    for key, offsets in by_key.items():
        assert_in_order(offsets, key)


def assert_in_order(offsets: list[int], what: str) -> None:
    """First deliveries come in order; what comes again was there before."""
    seen: set[int] = set()
    highest = -1
    for offset in offsets:
        if offset not in seen:
            assert offset > highest, f"{what}: {offset} came first after {highest}"
            highest = offset
        seen.add(offset)


def crash(folder: Path, rounds: int) -> None:
    with serving(folder) as server:
        load = asyncio.run(asyncio.wait_for(kill_rounds(server, rounds), 60 + 30 * rounds))
        assert server.stop() == 0
    check(load, folder)


@pytest.mark.timeout(400)
def test_nothing_acknowledged_is_lost_when_the_server_is_killed(tmp_path: Path) -> None:
    crash(tmp_path, rounds=2)  # the second kill meets what the first restart left


@pytest.mark.long
@pytest.mark.timeout(2_000)
def test_nothing_acknowledged_is_lost_over_thirty_kills(tmp_path: Path) -> None:
    crash(tmp_path, rounds=30)

"""A broker counts the topics that come to it and go from it, for its metrics."""

from __future__ import annotations

import asyncio
from pathlib import Path

from owning_brokers import LEASE_MS, Broker, World
from virtual_time import VirtualLoop

from frazil.core.names import TopicName

TOPIC = TopicName.parse("/default/t0")


def test_topics_taken_and_given_are_counted(tmp_path: Path) -> None:
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    world = World(tmp_path, loop)
    one, two = (Broker(world, name, {}, far=False) for name in "ab")

    async def work() -> None:
        for broker in (one, two):
            await broker.start()
        await asyncio.sleep(LEASE_MS / 1_000 + 2)
        await one.create(TOPIC, None)
        assert one.ownership is not None
        assert two.ownership is not None
        await one.ownership.move(TOPIC, "b")
        assert (one.ownership.counts.taken, one.ownership.counts.given, one.ownership.counts.failed) == (1, 1, 0)
        assert (two.ownership.counts.taken, two.ownership.counts.given) == (1, 0)
        for broker in (one, two):
            await broker.kill()

    try:
        loop.run_until_complete(work())
    finally:
        for broker in (one, two):
            broker.meta.close()
        loop.close()
        asyncio.set_event_loop(None)

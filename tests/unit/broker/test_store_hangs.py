"""A metadata store that hangs holds up only what must be stored, and that for a bounded time."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from broker_world import TOPIC, World, run, until, world

import frazil
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.serial import SerialLock
from frazil.core.clock import SystemClock
from frazil.core.settings.broker import BrokerSettings
from frazil.meta.sqlite import SqliteStore

CALL_S = 0.3
TURN_S = 0.5


class Hanging(SqliteStore):
    """As etcd that was stopped: each change waits for its time, and is given up."""

    hangs = False

    def put_all(self, values: Mapping[str, bytes]) -> None:
        if self.hangs:
            threading.Event().wait(CALL_S)
            raise frazil.MetadataUnavailable("http://etcd", "it did not answer in time", unclear=True)
        super().put_all(values)


def let_it_hang(made: World) -> Hanging:
    """The world's broker anew, over a store that can hang."""
    store = Hanging(Path(made.meta._path))
    settings = BrokerSettings(progress_flush_ms=10, redelivery_delay_ms=10, redelivery_delay_ms_max=10)
    made.broker = Broker(made.storage, store, settings, SystemClock())
    made.broker._making = SerialLock(TURN_S)
    return store


@run
async def test_of_many_who_subscribe_at_once_each_is_answered_in_time(folder: Path) -> None:
    async with world(folder) as made:
        before = made.broker
        await before.create_producer(TOPIC, "p", reliable=True)
        store = let_it_hang(made)
        await made.broker.start()
        store.hangs = True
        began = time.monotonic()
        answers = await asyncio.gather(
            *(made.broker.subscribe(TOPIC, f"s{number}", Kind.SHARED, "c") for number in range(40)),
            return_exceptions=True,
        )
        assert time.monotonic() - began < 20 * CALL_S, "not one after the other"
        assert {type(answer) for answer in answers} <= {frazil.MetadataUnavailable, frazil.TryLater}
        store.hangs = False
        await made.broker.subscribe(TOPIC, "s0", Kind.SHARED, "c")
        await made.broker.close()
        store.close()
        made.broker = before


@run
async def test_who_is_known_is_answered_while_others_wait(folder: Path) -> None:
    """A client that lost its connection comes back, and dead letters are published."""
    async with world(folder) as made:
        client = await made.consumer("known")
        producer = await made.broker.create_producer(TOPIC, "p", reliable=True)
        made.broker._making = made.broker._producers._making = SerialLock(TURN_S)
        async with made.broker._making:
            assert await made.broker.subscribe(TOPIC, "s", Kind.EXCLUSIVE, "known") == client.id
            assert (await made.broker.create_producer(TOPIC, "p", reliable=True)).id == producer.id
            client.connect()
            await made.send("one")
            assert await client.take() == [(0, "one")]
            for late in (
                made.broker.subscribe(TOPIC, "s", Kind.EXCLUSIVE, "another"),
                made.broker.create_producer(TOPIC, "another", reliable=True),
                made.broker.create_producer("/default/another", "p", reliable=True),
            ):
                with pytest.raises(frazil.TryLater, match="other changes wait for the disk or the metadata store"):
                    await late
        client.ack(0)
        await until(lambda: made.subscription.durable_end == 1)
        with pytest.raises(frazil.SubscriptionTaken):
            await made.broker.subscribe(TOPIC, "s", Kind.EXCLUSIVE, "another")

"""Clocks that jump: the wall clock by hours, both ways, and a broker that stood still while hours passed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime, timezone
from pathlib import Path

import pytest
from broker_world import TOPIC, Client, World, run, until

from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.subscriptions.ack_guard import AckGuard
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings, Settings, WalSettings
from frazil.core.settings.broker import BrokerSettings, Poison
from frazil.log.storage import open_storage
from frazil.meta.sqlite import SqliteStore
from frazil.testing import FakeClock

NAME = TopicName.parse(TOPIC)
SECOND_US, HOUR_US = 1_000_000, 3_600_000_000
SETTINGS = BrokerSettings(
    ack_timeout_ms=30_000, redelivery_delay_ms=10_000, redelivery_delay_ms_max=60_000, progress_flush_ms=10
)


class ClockWorld(World):
    """A world whose clock a test moves."""

    def __init__(self, storage: object, folder: Path, settings: BrokerSettings, clock: FakeClock) -> None:
        self.meta = SqliteStore(folder / "meta.db", clock)
        self.storage = storage  # type: ignore[assignment]
        self.clock = clock
        self.broker = Broker(self.storage, self.meta, settings, clock)
        self.admin = BrokerAdmin(self.broker)

    async def advance(self, duration_us: int) -> None:
        self.clock.advance(duration_us)
        await self.look()

    async def step_wall(self, duration_us: int) -> None:
        self.clock.step_wall(duration_us)
        await self.look()

    async def look(self) -> None:
        """The subscription looks at the clock, as it would when its timer ends."""
        self.subscription._wake.set()
        for _ in range(20):
            await asyncio.sleep(0)


@asynccontextmanager
async def world(folder: Path, settings: BrokerSettings = SETTINGS) -> AsyncIterator[ClockWorld]:
    clock = FakeClock()
    wal = WalSettings(max_file_size=64 * 1024, max_file_age_ms=1_000)
    with open_storage(Settings(data=folder / "data", wal=wal), clock=clock) as storage:
        made = ClockWorld(storage, folder, settings, clock)
        await made.broker.start()
        try:
            yield made
        finally:
            await made.broker.close()
            made.meta.close()


async def delivered(here: ClockWorld, *payloads: str) -> Client:
    client = await here.consumer("c")
    await here.send(*payloads)
    await client.take(len(payloads))
    return client


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_wall_clock_that_jumps_neither_ends_a_delivery_nor_holds_one_up(tmp_path: Path, hours: int) -> None:
    async def go() -> None:
        async with world(tmp_path) as here:
            client = await delivered(here, "a", "b")
            await here.step_wall(hours * HOUR_US)
            assert here.subscription.in_flight == 2
            client.ack(0)
            here.subscription.nack(1, 20_000_000, "later")
            await here.step_wall(-hours * HOUR_US)
            await here.advance(19 * SECOND_US)
            assert here.subscription.resting == 1, "its delay is not over"
            await here.advance(SECOND_US)
            assert await client.take() == [(1, "b")]
            await here.step_wall(hours * HOUR_US)
            await here.advance(30 * SECOND_US)
            assert here.subscription.counts.timeouts == 1, "a time-out comes at its time"
            await here.advance(20 * SECOND_US)
            assert await client.take() == [(1, "b")]
            client.ack(1)
            await until(lambda: here.subscription.durable_end == 2)
            await here.admin.set_policy(NAME, "s", lambda _: OwnPolicy(ack_timeout_ms=1_000))
            await here.send("c")
            assert await client.take() == [(2, "c")]
            await here.step_wall(-hours * HOUR_US)
            await here.advance(SECOND_US)
            assert here.subscription.counts.timeouts == 2, "and by the policy that was set"

    asyncio.run(asyncio.wait_for(go(), 60))


@run
async def test_a_broker_that_stood_still_gives_every_delivery_its_time_again(tmp_path: Path) -> None:
    """The answer may have come while it could not look: that costs no attempt, and no message is given up."""
    settings = SETTINGS.model_copy(update={"redeliveries_max": 0, "poison": Poison.DROP})
    async with world(tmp_path, settings) as here:
        client = await delivered(here, "a", "b")
        await here.advance(5 * HOUR_US)
        assert (here.subscription.in_flight, here.subscription.counts.timeouts) == (2, 0)
        assert here.subscription.counts.dropped == 0
        client.ack(0)
        await here.advance(29 * SECOND_US)
        assert here.subscription.in_flight == 1
        await here.advance(SECOND_US)
        assert (here.subscription.in_flight, here.subscription.counts.dropped) == (0, 1), "then time counts"


@run
async def test_append_times_never_step_back_and_a_time_names_one_offset(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await delivered(here, "a")
        before = datetime.fromtimestamp(here.clock.now_us() / 1e6, timezone.utc)
        here.clock.step_wall(-5 * HOUR_US)
        await here.send("b")
        here.clock.step_wall(6 * HOUR_US)
        after = datetime.fromtimestamp(here.clock.now_us() / 1e6, timezone.utc)
        await here.send("c")
        await client.take(2)
        times = [message.append_time for message in here.storage.topic(TOPIC).read("earliest")]
        assert times == sorted(times)
        assert times[0] == times[1] == before
        assert (await here.admin.reset(NAME, "s", before)).cursor == 0
        assert (await here.admin.reset(NAME, "s", after)).cursor == 2


@run
async def test_retention_by_age_removes_nothing_that_a_jump_makes_old_if_it_is_not_acknowledged(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await delivered(here, "a", "b")
        here.storage.add_guard(AckGuard(here.broker))
        here.storage.set_retention(TOPIC, RetentionSettings(age_ms=60_000, until_acked=True))
        for hours in (-5, 10):
            here.clock.step_wall(hours * HOUR_US)
            await asyncio.to_thread(here.storage.maintain)
            assert here.storage.topic(TOPIC).stats().first_offset == 0
        client.ack(0, 1)
        await until(lambda: here.subscription.durable_end == 2)
        here.clock.step_wall(-10 * HOUR_US)
        await asyncio.to_thread(here.storage.maintain)
        assert here.storage.topic(TOPIC).stats().first_offset == 0, "set back, nothing is old"
        here.clock.step_wall(10 * HOUR_US)
        await asyncio.to_thread(here.storage.maintain)
        assert here.storage.topic(TOPIC).stats().first_offset == 2
        await here.send("c")
        assert await client.take() == [(2, "c")]

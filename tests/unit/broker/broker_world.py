"""A broker over a real log, with clients on the same loop: what the tests of this folder share."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import frazil
from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.subscriptions.consumer import Stream
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.clock import SystemClock
from frazil.core.rows import Origin
from frazil.core.settings import Settings
from frazil.core.settings.broker import BrokerSettings
from frazil.log.retention.guards import Guard
from frazil.meta.sqlite import SqliteStore
from parts.moving import open_guarded

TOPIC = "/default/orders"
QUICK = BrokerSettings(redelivery_delay_ms=20, redelivery_delay_ms_max=100, ack_timeout_ms=30_000, progress_flush_ms=10)


class World:
    def __init__(
        self, storage: frazil.Storage, folder: Path, settings: BrokerSettings, *, letters_on_demand: bool = True
    ) -> None:
        self.meta = SqliteStore(folder / "meta.db")
        self.storage = storage
        self.broker = Broker(storage, self.meta, settings, SystemClock(), letters_on_demand=letters_on_demand)
        self.admin = BrokerAdmin(self.broker)

    async def send(self, *payloads: str, key: str | None = None, topic: str = TOPIC) -> None:
        producer = await self.broker.create_producer(topic, "p", reliable=True)
        for payload in payloads:
            await producer.topic.publish(OutgoingMessage(payload.encode(), key, {}, Origin("p", 1)))

    async def consumer(self, name: str, kind: Kind = Kind.EXCLUSIVE, filters: tuple[str, ...] = ()) -> Client:
        if TOPIC not in map(str, self.broker.topics):
            await self.broker.create_producer(TOPIC, "p", reliable=True)
        number = await self.broker.subscribe(TOPIC, "s", kind, name, filters)
        return Client(self, number)

    @property
    def subscription(self) -> Subscription:
        found = self.broker.subscription(TOPIC, "s")
        assert isinstance(found, Subscription)
        return found


class Client:
    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self.id = number
        self.stream: Stream | None = None
        self.connect()

    def connect(self) -> None:
        _, self._subscription, self._consumer, self.stream = self._world.broker.connect(self.id)

    def drop(self) -> None:
        assert self.stream is not None
        self._subscription.disconnect(self._consumer, self.stream)

    async def take(self, count: int = 1) -> list[tuple[int, str]]:
        assert self.stream is not None
        found = []
        for _ in range(count):
            entry = await asyncio.wait_for(self.stream.take(), 10)
            assert entry is not None
            found.append((entry.offset, entry.message.payload.decode()))
        return found

    async def nothing_comes(self) -> bool:
        assert self.stream is not None
        taking = asyncio.ensure_future(self.stream.take())
        done, _ = await asyncio.wait([taking], timeout=0.15)
        taking.cancel()
        return not done

    def ack(self, *offsets: int, incarnation: int | None = None) -> None:
        for offset in offsets:
            self._subscription.ack(offset, incarnation)


@asynccontextmanager
async def world(
    folder: Path,
    settings: BrokerSettings = QUICK,
    where: Settings | None = None,
    guards: Sequence[Guard] | None = None,
    *,
    letters_on_demand: bool = True,
) -> AsyncIterator[World]:
    """With `guards`, retention asks these alone. `letters_on_demand` is False while security is on."""
    ours = where or Settings.of_folder(folder / "data")
    with frazil.open(ours) if guards is None else open_guarded(ours, *guards) as storage:
        made = World(storage, folder, settings, letters_on_demand=letters_on_demand)
        await made.broker.start()
        try:
            yield made
        finally:
            await made.broker.close()
            made.meta.close()


async def until(is_so: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if is_so():
            return
        await asyncio.sleep(0.01)
    raise AssertionError("it never came to be")


def run(test: Callable[[Path], object]) -> Callable[[Path], None]:
    """An asyncio test on a loop of its own."""

    def runs(tmp_path: Path) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path), 60))  # type: ignore[arg-type]

    runs.__name__ = test.__name__
    runs.__doc__ = test.__doc__
    return runs

"""One subscription for each topic, by a broker that lives for a step, and what was promised of its delivery.

From where it began each row is delivered, in order, until its acknowledgement is durable; then it is not delivered
again. A topic that is kept until it is acknowledged keeps the rest. Another topic of the name has no subscription.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest
from promises import LogPromises, Rows
from world import World

from frazil import InvalidInput
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.subscriptions.ack_guard import AckGuard
from frazil.core.clock import SystemClock
from frazil.core.names import TopicName
from frazil.core.settings.broker import BrokerSettings
from frazil.meta.opening import open_meta

NAME = "s"
TAKE_SECONDS_MAX, LAST_TAKE_SECONDS_MAX = 0.3, 20.0
SETTINGS = BrokerSettings(progress_flush_ms=60_000, max_unacked_messages=1_000)
"""Progress is stored when it is flushed, or when the broker closes."""


@dataclass
class Promised:
    """`begin` is None as long as no subscribe was answered; one without an answer may begin at `asked` or later."""

    asked: int | None = None
    begin: int | None = None
    acked: set[int] = field(default_factory=set)
    unknown: set[int] = field(default_factory=set)
    """Acknowledged, and perhaps not stored."""

    def floor(self) -> int:
        """The first row that may not have been acknowledged at all."""
        at = self.begin or 0
        while at in self.acked or at in self.unknown:
            at += 1
        return at

    def check(self, found: Rows, log: LogPromises) -> None:
        assert self.begin is not None
        assert self.asked is not None
        offsets = [offset for offset, _ in found]
        assert offsets == sorted(set(offsets)), f"{log.name}: delivered twice or out of order: {offsets}"
        wanted = set(range(self.begin, log.end)) - self.acked
        never = wanted - set(offsets) - self.unknown
        assert not never, f"{log.name}: never delivered: {sorted(never)}"
        again = set(offsets) - wanted - set(range(self.asked, self.begin))
        assert not again, f"{log.name}: delivered though acknowledged, or from before the subscription: {sorted(again)}"
        for offset, payload in found:
            assert log.acked[offset] == payload, f"{log.name}: another row delivered at offset {offset}"


class Subscribers:
    def __init__(self, world: World) -> None:
        self._world = world
        self._promised: dict[str, Promised] = {}
        """By log: a topic made anew begins without any."""

    def of(self, topic: str) -> Promised:
        return self._promised.setdefault(self._world.logs[topic].log_id, Promised())

    def subscribe(self, topic: str) -> None:
        end, promised = self._world.topic(topic).log.durable_end, self.of(topic)

        async def act(broker: Broker) -> None:
            await broker.make_known(topic)
            promised.asked = end if promised.asked is None else promised.asked
            await broker.subscribe(topic, NAME, Kind.EXCLUSIVE, "c")
            promised.begin = end if promised.begin is None else promised.begin

        self._run(act)

    def consume(self, topic: str, count: int) -> None:
        promised = self.of(topic) if topic in self._world.logs else Promised()
        if promised.begin is None:
            return  # the topic, or its subscription, could not be made

        async def act(broker: Broker) -> None:
            for offset, _ in await self._take(broker, topic, lambda found: len(found) == count, TAKE_SECONDS_MAX):
                promised.unknown.add(offset)
                broker.subscription(topic, NAME).ack(offset)
            await broker._progress.flush()  # an error leaves it unknown what is stored; a close would only log it

        self._run(act)
        promised.acked |= promised.unknown
        promised.unknown.clear()

    async def _take(self, broker: Broker, topic: str, is_all: Callable[[Rows], bool], seconds_max: float) -> Rows:
        """Until that is all, or no more comes in the time."""
        number = await broker.subscribe(topic, NAME, Kind.EXCLUSIVE, "c")
        *_, stream = broker.connect(number)
        found: Rows = []
        with contextlib.suppress(TimeoutError):
            while not is_all(found):
                entry = await asyncio.wait_for(stream.take(), seconds_max)
                assert entry is not None
                found.append((entry.offset, bytes(entry.message.payload)))
        return found

    # --- what is asked

    def check_kept(self, topic: str) -> None:
        """After retention of a topic that is kept until it is acknowledged."""
        if self._world.logs[topic].log_id in self._promised and self.of(topic).begin is not None:
            first, floor = self._world.topic(topic).log.first_offset, self.of(topic).floor()
            assert first <= floor, f"{topic}: the log begins at {first}, and {floor} was never acknowledged"

    def look(self, topic: str) -> None:
        """All that comes is what was promised; a topic that nobody subscribed to has no subscription."""
        log, promised = self._world.logs[topic], self.of(topic)
        if log.deleting:
            return  # a deletion that was cut short takes subscriptions first

        async def act(broker: Broker) -> None:
            if promised.begin is not None:
                last = max(set(range(promised.begin, log.end)) - promised.acked - promised.unknown, default=None)
                found = await self._take(
                    broker, topic, lambda found: last is None or last in dict(found), LAST_TAKE_SECONDS_MAX
                )
                promised.check(found, log)
            elif promised.asked is None and broker.knows(TopicName.parse(topic)):
                with pytest.raises(InvalidInput):  # an earlier topic of the name had one
                    broker.subscription(topic, NAME)

        self._run(act)

    def _run(self, act: Callable[[Broker], Awaitable[None]]) -> None:
        asyncio.run(self._with_broker(act))

    async def _with_broker(self, act: Callable[[Broker], Awaitable[None]]) -> None:
        storage = self._world.storage
        assert storage is not None
        with contextlib.closing(open_meta(self._world.settings)) as meta:
            broker = Broker(storage, meta, SETTINGS, SystemClock())
            guard = AckGuard(broker)
            try:
                await broker.start()
                storage.add_guard(guard)
                await act(broker)
            finally:
                storage.remove_guard(guard)
                await broker.close()

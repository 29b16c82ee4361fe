"""A subscription: its cursor, its consumers, and what is on its way between them.

A message is in one of these places, in this order: not yet read, `_ready` (read, not sent), parked behind another of
its key, `_sent` (waiting for an answer), `_resting` (to be sent again), acknowledged. Only acknowledgements move the
cursor. One task for each subscription moves messages along; everything else only changes the state and wakes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable

from frazil.broker.choice import Choice, Kind, choice_of
from frazil.broker.consumer import Consumer, Stream
from frazil.broker.counts import DeliveryCounts
from frazil.broker.cursor import Cursor
from frazil.broker.entry import Entry
from frazil.broker.feed import Feed, FeedReader
from frazil.broker.rules import DeliveryRules
from frazil.core.broker_settings import Poison
from frazil.core.clock import Clock
from frazil.core.errors import Closed, FrazilError, OffsetOutOfRange

PARKED_MAX = 1_000
"""Key-shared: so far is read ahead over keys that are busy."""
READ_AGAIN_SECONDS_MIN, READ_AGAIN_SECONDS_MAX = 0.5, 30.0

_log = logging.getLogger("frazil.broker")


class Delivery:
    """A message that was sent at least once."""

    __slots__ = ("consumer", "due_us", "entry", "redeliveries")

    def __init__(self, entry: Entry, consumer: Consumer | None, redeliveries: int, due_us: int) -> None:
        self.entry = entry
        self.consumer = consumer
        self.redeliveries = redeliveries
        self.due_us = due_us
        """In flight: when it is taken for lost. Resting: when it goes out again."""


OnPoison = Callable[["Subscription", Delivery, str], Awaitable[None]]


class Subscription:
    def __init__(
        self,
        name: str,
        kind: Kind,
        cursor: Cursor,
        feed: Feed,
        rules: DeliveryRules,
        clock: Clock,
        changed: Callable[[Subscription], None],
        on_poison: OnPoison,
    ) -> None:
        self.name = name
        self.kind = kind
        self.cursor = cursor
        self.consumers: dict[str, Consumer] = {}
        self._feed = feed
        self._rules = rules
        self._clock = clock
        self._changed = changed
        self._on_poison = on_poison
        self._choice: Choice = choice_of(kind)
        self._reader = feed.reader(cursor.end)
        self._ready: deque[Entry] = deque()
        self._parked: defaultdict[bytes, deque[Entry]] = defaultdict(deque)
        self._parked_count = 0
        self._busy: set[bytes] = set()
        self._sent: dict[int, Delivery] = {}
        self._resting: dict[int, Delivery] = {}
        self._due: list[tuple[int, int]] = []
        self._blocked_by: int | None = None
        self.counts = DeliveryCounts()
        self._wake = asyncio.Event()
        self._reset = asyncio.Event()
        self._reads = False
        self._task: asyncio.Task[None] | None = None

    @property
    def in_flight(self) -> int:
        return len(self._sent)

    @property
    def resting(self) -> int:
        return len(self._resting)

    @property
    def lag(self) -> int:
        """Messages that are not acknowledged."""
        return max(0, self._feed.end - self.cursor.end - self.cursor.acked_above)

    @property
    def end(self) -> int:
        return self._feed.end

    @property
    def unacked(self) -> int:
        return len(self._sent) + len(self._resting)

    @property
    def blocked_by(self) -> int | None:
        """The offset of a message that nobody acknowledges and that nothing may overtake."""
        return self._blocked_by

    # --- consumers

    def connect(self, consumer: Consumer) -> Stream:
        """A new stream of a known consumer; one that it had is ended, and what was on it goes out again at once."""
        if consumer.stream is not None:
            self.disconnect(consumer, consumer.stream)
        consumer.stream = Stream(self.cursor.epoch)
        self._consumers_changed()
        return consumer.stream

    def disconnect(self, consumer: Consumer, stream: Stream) -> None:
        """Nothing if the consumer has another stream by now."""
        stream.end()
        if consumer.stream is not stream:
            return
        consumer.stream = None
        now_us = self._clock.monotonic_us()
        for offset in sorted(consumer.in_flight):
            delivery = self._sent.pop(offset)
            self._rest(delivery, now_us)
        consumer.in_flight.clear()
        self._consumers_changed()

    def _consumers_changed(self) -> None:
        self._choice.changed([one for one in self.consumers.values() if one.stream is not None])
        self.wake()

    # --- answers

    def ack(self, offset: int, epoch: int | None = None) -> None:
        """Late and double ones are as good as any; one for what was never published, or was delivered before the
        cursor was set elsewhere, is not. `epoch` is that of the delivery, None if its consumer does not tell."""
        if not self._is_void(offset, epoch):
            self.counts.acks += self._acked(offset)

    def _acked(self, offset: int) -> bool:
        """Whether it was news."""
        if offset >= self._feed.end:
            return False
        delivery = self._sent.pop(offset, None) or self._resting.pop(offset, None)
        if delivery is not None:
            self._settle(delivery)
        if is_news := self.cursor.ack(offset):
            self._changed(self)
        self.wake()
        return is_news

    def nack(self, offset: int, delay_us: int | None, reason: str, epoch: int | None = None) -> None:
        if self._is_void(offset, epoch):
            return
        delivery = self._sent.pop(offset, None)
        if delivery is not None:
            self.counts.nacks += 1
            self._failed(delivery, delay_us, reason)
            self.wake()

    def _is_void(self, offset: int, epoch: int | None) -> bool:
        if epoch is not None:
            return epoch != self.cursor.epoch
        return self.cursor.epoch > 0 and offset not in self._sent and offset not in self._resting

    # --- set elsewhere

    def move_to(self, offset: int) -> None:
        """Begin anew at an offset. Who is connected stays so; what is on its way to them is void."""
        self.cursor = self.cursor.moved_to(offset)
        for waiting in (self._ready, self._parked, self._busy, self._sent, self._resting, self._due):
            waiting.clear()
        self._parked_count, self._blocked_by = 0, None
        for consumer in self.consumers.values():
            consumer.in_flight.clear()
            if consumer.stream is not None:
                consumer.stream.begin_anew(self.cursor.epoch)
        if not self._reads:  # else whoever reads from it closes it
            self._reader.close()
        self._reader = self._feed.reader(offset)
        self._changed(self)
        self._reset.set()
        self.wake()

    def _settle(self, delivery: Delivery) -> None:
        """It is done with: its consumer has room, and the next of its key may go."""
        if delivery.consumer is not None:
            delivery.consumer.in_flight.discard(delivery.entry.offset)
        if self._blocked_by == delivery.entry.offset:
            self._blocked_by = None
        if self.kind is Kind.KEY_SHARED:
            self._free(delivery.entry.key)

    def _free(self, key: bytes) -> None:
        self._busy.discard(key)
        waiting = self._parked.get(key)
        if waiting:
            self._ready.appendleft(waiting.popleft())
            self._parked_count -= 1
            if not waiting:
                del self._parked[key]

    def _failed(self, delivery: Delivery, delay_us: int | None, reason: str) -> None:
        offset = delivery.entry.offset
        if delivery.consumer is not None:
            delivery.consumer.in_flight.discard(offset)
        delivery.redeliveries += 1
        if delivery.redeliveries <= self._rules.redeliveries_max:
            wait_us = self._rules.delay_after_us(delivery.redeliveries - 1, delay_us)
            self._rest(delivery, self._clock.monotonic_us() + wait_us)
        elif self._rules.poison is Poison.BLOCK:
            if self._blocked_by is None:
                self._blocked_by = offset
                _log.error(
                    "%s: subscription %s waits for offset %d, which was not acknowledged after %d redeliveries (%s)",
                    self._feed.topic.name, self.name, offset, self._rules.redeliveries_max, reason,
                )  # fmt: skip
            self._rest(delivery, self._clock.monotonic_us() + self._rules.delay_us_max)
        else:
            self._resting[offset] = delivery  # until it is dropped or in the other topic: it may not be lost between
            delivery.due_us = self._clock.monotonic_us() + self._rules.delay_us_max
            task = asyncio.ensure_future(self._on_poison(self, delivery, reason))
            task.add_done_callback(lambda done: self._poison_done(done, delivery))

    def _poison_done(self, done: asyncio.Future[None], delivery: Delivery) -> None:
        error = None if done.cancelled() else done.exception()
        if self._resting.get(delivery.entry.offset) is not delivery:
            return  # acknowledged after all, or void
        if done.cancelled() or error is not None:
            _log.error("%s: subscription %s keeps a poison message: %s", self._feed.topic.name, self.name, error)
            self._rest(delivery, self._clock.monotonic_us() + self._rules.delay_us_max)
            self.wake()
        elif self._acked(delivery.entry.offset):
            self.counts.gave_up(self._rules.poison)

    def _rest(self, delivery: Delivery, until_us: int) -> None:
        delivery.consumer, delivery.due_us = None, until_us
        self._resting[delivery.entry.offset] = delivery
        heapq.heappush(self._due, (until_us, delivery.entry.offset))

    # --- the task

    def start(self) -> None:
        self._task = asyncio.create_task(self._work(), name=f"subscription {self.name}")

    def wake(self) -> None:
        self._wake.set()

    def has_more(self) -> None:
        """The topic has grown: that is of no interest to those who are away or have their hands full."""
        if self._has_consumers() and self._has_room():
            self._wake.set()

    def _has_consumers(self) -> bool:
        return any(one.stream is not None for one in self.consumers.values())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.end()
        self._reader.close()

    async def _work(self) -> None:
        failures = 0
        while True:
            self._wake.clear()
            self._feed.listen()
            now_us = self._clock.monotonic_us()
            self._take_back(now_us)
            self._send_again(now_us)
            self._send_new(now_us)
            if self._wants_more():
                self._reset.clear()
                try:
                    entries = await self._read(self._reader)
                except Closed:
                    return
                except (FrazilError, OSError) as error:
                    failures += 1
                    delay = min(READ_AGAIN_SECONDS_MAX, READ_AGAIN_SECONDS_MIN * 2 ** min(failures - 1, 10))
                    _log.error("subscription %s: %s; tried again in %.1f s", self.name, error, delay)
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(self._reset.wait(), delay)
                    continue
                failures = 0
                if entries:
                    self._ready.extend(entries)
                    continue
            await self._sleep(now_us)

    async def _read(self, reader: FeedReader) -> list[Entry]:
        """Nothing of a reader that was replaced meanwhile."""
        self._reads = True
        try:
            found = await self._read_on(reader)
        except (FrazilError, OSError):
            if reader is self._reader:
                raise
            found = []
        finally:
            self._reads = False
            if reader is not self._reader:
                reader.close()
        return found if reader is self._reader else []

    async def _read_on(self, reader: FeedReader) -> list[Entry]:
        try:
            return await reader.next()
        except OffsetOutOfRange:
            first = self._feed.topic.log.first_offset
            if first <= reader.offset or reader is not self._reader:
                raise
            lost = reader.offset
            _log.error(
                "%s: subscription %s goes on at offset %d: retention has removed %d up to there",
                self._feed.topic.name, self.name, first, lost,
            )  # fmt: skip
            reader.skip_to(first)
            self.cursor.advance(first)
            self._changed(self)
            self.wake()
            return []

    def _wants_more(self) -> bool:
        return (
            not self._ready
            and self._has_room()
            and self._parked_count < PARKED_MAX
            and self._has_consumers()
            and self._reader.offset < self._feed.end
        )

    def _has_room(self) -> bool:
        return self._blocked_by is None and self.unacked < self._rules.unacked_max

    def _take_back(self, now_us: int) -> None:
        """What was sent first is due first: sending again puts a message at the end."""
        while self._sent:
            offset, delivery = next(iter(self._sent.items()))
            if delivery.due_us > now_us:
                return
            del self._sent[offset]
            self.counts.timeouts += 1
            self._failed(delivery, None, "the acknowledgement took too long")

    def _send_again(self, now_us: int) -> None:
        kept = []
        while self._due and self._due[0][0] <= now_us:
            due_us, offset = heapq.heappop(self._due)
            delivery = self._resting.get(offset)
            if delivery is None or delivery.due_us != due_us:
                continue  # acknowledged, or put to rest anew
            consumer = self._choice.pick(delivery.entry, self._rules.unacked_max)
            if consumer is None:
                kept.append((due_us, offset))
                if not self._choice.wanted(delivery.entry):
                    continue
                break
            del self._resting[offset]
            self.counts.redeliveries += 1
            self._send(delivery, consumer, now_us)
        for each in kept:
            heapq.heappush(self._due, each)

    def _send_new(self, now_us: int) -> None:
        while self._ready and self._has_room():
            entry = self._ready[0]
            if self.cursor.is_acked(entry.offset):
                self._ready.popleft()
                continue
            if self.kind is Kind.KEY_SHARED and not self._may_go(entry):
                continue
            consumer = self._choice.pick(entry, self._rules.unacked_max)
            if consumer is None:
                return
            self._ready.popleft()
            self._send(Delivery(entry, consumer, 0, 0), consumer, now_us)

    def _may_go(self, entry: Entry) -> bool:
        """False if it was taken out of the row: its key is busy, or nobody wants it."""
        if entry.key in self._busy:
            self._ready.popleft()
            self._parked[entry.key].append(entry)
            self._parked_count += 1
            return False
        if self._has_consumers() and not self._choice.wanted(entry):
            self._ready.popleft()
            self.cursor.ack(entry.offset)
            self._changed(self)
            self._free(entry.key)
            return False
        return True

    def _send(self, delivery: Delivery, consumer: Consumer, now_us: int) -> None:
        assert consumer.stream is not None
        offset = delivery.entry.offset
        delivery.consumer, delivery.due_us = consumer, now_us + self._rules.ack_timeout_us
        self._sent[offset] = delivery
        consumer.in_flight.add(offset)
        if self.kind is Kind.KEY_SHARED:
            self._busy.add(delivery.entry.key)
        consumer.stream.put(delivery.entry)
        self.counts.deliveries += 1

    async def _sleep(self, now_us: int) -> None:
        """Until something changes, or the next moment that was set."""
        moments = [next(iter(self._sent.values())).due_us] if self._sent else []
        if self._due and self._due[0][0] > now_us:  # what is due already waits for a consumer with room
            moments.append(self._due[0][0])
        if not moments:
            await self._wake.wait()
            return
        timer = asyncio.get_running_loop().call_later(max(0, min(moments) - now_us) / 1e6, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

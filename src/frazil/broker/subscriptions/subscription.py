"""A subscription of a reliable topic: connects the state machine with the topic's messages and the consumers' streams.

`delivery/state.py` decides. This module reads messages and executes the decisions, with one task that waits for
deadlines and for more messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence

from frazil.broker.counts import DeliveryCounts
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.items import Blocked, Decision, Deliver, Dropped, SetAside
from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.delivery.progress import Progress
from frazil.broker.delivery.state import SubscriptionState
from frazil.broker.subscriptions.consumer import Consumer, Stream
from frazil.broker.subscriptions.cursor import Cursor
from frazil.broker.subscriptions.wake import Wake
from frazil.broker.topics.entry import Entry
from frazil.broker.topics.feed import Feed, FeedReader
from frazil.core.backoff import backoff
from frazil.core.clock import Clock
from frazil.core.errors import Closed, FrazilError, InvalidInput, InvalidName, OffsetOutOfRange
from frazil.core.offsets import Place
from frazil.core.settings.broker import Poison
from frazil.log.read.positions import next_offset

PAUSE_US = 1_000_000
"""If the task wakes up later than this, the process was stopped or is overloaded."""
READ_AGAIN_SECONDS_MIN, READ_AGAIN_SECONDS_MAX = 0.5, 30.0
INCARNATION_MAX = 2**62

_log = logging.getLogger("frazil.broker")


def new_incarnation() -> int:
    """Random, so that an answer to an earlier subscription of the same name never matches. Never 0."""
    return 1 + secrets.randbelow(INCARNATION_MAX)


SetAsideCall = Callable[["Subscription", Entry, int, str], Awaitable[None]]
"""Publish a dead letter: (subscription, entry, attempts, reason). Durable when it returns."""


class Subscription:
    def __init__(
        self,
        name: str,
        kind: Kind,
        progress: Progress,
        own_policy: OwnPolicy,
        defaults: DeliveryPolicy,
        feed: Feed,
        clock: Clock,
        changed: Callable[[Subscription], None],
        set_aside: SetAsideCall,
        place: Place | None = None,
    ) -> None:
        self.name = name
        self.own_policy = own_policy
        """The fields set for this subscription; the broker's defaults apply to the rest."""
        self.consumers: dict[str, Consumer] = {}
        self.counts = DeliveryCounts()
        self.place = place
        """The table position of a row before the cursor."""
        self.placed_end = 0
        """The cursor that the position was last determined for."""
        self.deleted = False
        self._feed = feed
        self._clock = clock
        self._changed = changed
        self._set_aside = set_aside
        self._state = SubscriptionState(kind, own_policy.over(defaults), progress, feed.end)
        self._reader: FeedReader | None = None
        """Created when there is a consumer."""
        self._resume_after = place
        self._wake = Wake()
        self._reset = Wake()
        self._reads = False
        self._letters: set[asyncio.Task[None]] = set()
        self._started = False
        self._task: asyncio.Task[None] | None = None

    # --- state

    @property
    def kind(self) -> Kind:
        return self._state.kind

    @property
    def policy(self) -> DeliveryPolicy:
        return self._state.policy

    @property
    def cursor(self) -> Cursor:
        return self._state.cursor

    @property
    def durable_end(self) -> int:
        return self._state.durable_end

    @property
    def incarnation(self) -> int:
        return self._state.incarnation

    @property
    def in_flight(self) -> int:
        return self._state.in_flight

    def in_flight_of(self, consumer: str) -> int:
        member = self._state.members.get(consumer)
        return 0 if member is None else len(member.in_flight)

    @property
    def resting(self) -> int:
        return self._state.retrying

    @property
    def unacked(self) -> int:
        return self._state.in_flight + self._state.retrying

    @property
    def blocked_by(self) -> int | None:
        """The offset of a poison message that blocks newer ones."""
        return self._state.blocked_by

    @property
    def end(self) -> int:
        return self._feed.end

    @property
    def lag(self) -> int:
        """Number of unacknowledged messages."""
        return max(0, self._feed.end - self.cursor.end - self.cursor.acked_above)

    # --- progress

    def progress(self) -> Progress:
        """Return the state to store."""
        return self._state.progress()

    def stored(self, progress: Progress) -> None:
        self._state.stored(progress)

    # --- consumers

    def add(self, consumer: Consumer) -> None:
        """Add a consumer."""
        self.consumers[consumer.name] = consumer
        self._apply(self._state.joined(consumer.name, consumer.key_filters, self._now_us()))

    def set_filters(self, consumer: Consumer, key_filters: Sequence[str]) -> None:
        """Replace the filters and end the stream: its messages in flight were chosen by the old filters."""
        self.end_stream(consumer)
        consumer.key_filters = tuple(key_filters)
        self._apply(self._state.joined(consumer.name, consumer.key_filters, self._now_us()))

    def expect(self, consumer: Consumer) -> None:
        """Do nothing: messages are in the log, so nothing is buffered before the consumer connects."""

    def connect(self, consumer: Consumer) -> Stream:
        """Open a stream of a known consumer. Its previous stream ends, and messages in flight are
        redelivered at once.
        """
        self.end_stream(consumer)
        consumer.stream = Stream(self._state.incarnation)
        self._apply(self._state.connected(consumer.name, self._now_us()))
        if self._task is None and self._started:
            self._task = asyncio.create_task(self._work(), name=f"subscription {self.name}")
        return consumer.stream

    def end_stream(self, consumer: Consumer) -> None:
        """End the consumer's stream, if there is one, before another replaces it."""
        if consumer.stream is not None:
            consumer.stream.is_replaced = True
            self.disconnect(consumer, consumer.stream)

    def disconnect(self, consumer: Consumer, stream: Stream) -> None:
        """Does nothing if the consumer has another stream by now."""
        stream.end()
        if consumer.stream is not stream:
            return
        consumer.stream = None
        self._apply(self._state.disconnected(consumer.name, self._now_us(), stream.unsent))

    # --- answers

    def ack(self, offset: int, incarnation: int | None = None) -> None:
        """Late and duplicate acks are accepted. `incarnation` is that of the delivery, None if unknown."""
        before = self.cursor.is_acked(offset)
        if not before:
            self._check_answer(offset, incarnation)
        self._apply(self._state.acked(offset, incarnation, self._now_us()))
        self.counts.acks += not before and self.cursor.is_acked(offset)

    def nack(self, offset: int, delay_us: int | None, reason: str, incarnation: int | None = None) -> None:
        self._check_answer(offset, incarnation)
        in_flight = self._state.in_flight
        decisions = self._state.nacked(offset, incarnation, self._now_us(), delay_us, reason)
        self.counts.nacks += self._state.in_flight < in_flight or bool(decisions)
        self._apply(decisions)

    def _check_answer(self, offset: int, incarnation: int | None) -> None:
        """Refuse an answer without an incarnation that may be for an earlier subscription of that name."""
        if incarnation is None and not self._state.is_out(offset):
            raise InvalidInput(
                f"msg_id: no consumer of {self.name!r} has message {offset}, and the answer does not say which "
                "delivery it is for; send the id back as it came with the message",
                field="msg_id",
            )

    # --- administration

    def set_policy(self, own: OwnPolicy, defaults: DeliveryPolicy) -> None:
        self.own_policy = own
        self._apply(self._state.policy_set(own.over(defaults), self._now_us()))

    def move_to(self, stored: Progress) -> None:
        """Restart at the stored start of another incarnation. Consumers stay connected; messages in flight are void."""
        offset = stored.cursor
        decisions = self._state.reset(offset, stored.incarnation, self._now_us())
        self._state.stored(stored)
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.reset(self._state.incarnation)
        if self._reader is not None and not self._reads:  # otherwise the task that reads from it closes it
            self._reader.close()
        self._reader = self._resume_after = None
        self.place, self.placed_end = None, 0
        self._reset.set()
        self._apply(decisions)

    # --- the task

    def start(self) -> None:
        """The task starts with the first consumer: without one there is nothing to do."""
        self._started = True

    def end_at_once(self) -> None:
        """Stop at once, because the subscription is being deleted."""
        self.deleted = True
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.end()

    async def close(self) -> None:
        tasks = [*self._letters, *([self._task] if self._task is not None else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for consumer in self.consumers.values():
            if consumer.stream is not None:
                consumer.stream.end()
        if self._reader is not None:
            self._reader.close()

    async def _work(self) -> None:
        failures = 0
        stalled = False
        while True:
            self._wake.clear()
            if self._state.has_room:
                self._feed.listen(self._wake.set)
            now_us = self._now_us()
            wake_at_us = self._state.wake_at_us()
            if wake_at_us is not None and wake_at_us <= now_us:
                self._apply(self._state.stalled(now_us) if stalled else self._state.time_passed(now_us))
                stalled = False
                continue
            if self._state.wants_items:
                self._reset.clear()
                try:
                    if self._reader is None:
                        self._reader = self._feed.reader(self._state.next_offset, self._resume_after)
                    entries = await self._read(self._reader)
                except Closed:
                    return
                except (FrazilError, OSError) as error:
                    failures += 1
                    delay = backoff(failures, first=READ_AGAIN_SECONDS_MIN, limit=READ_AGAIN_SECONDS_MAX)
                    _log.error("subscription %s: %s; retry in %.1f s", self.name, error, delay)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(delay):  # `wait_for` may lose a cancellation
                            await self._reset.wait()
                    continue
                failures = 0
                if entries:
                    self._apply(self._state.fetched(entries, self._now_us()))
                    continue
            stalled = await self._sleep(self._state.wake_at_us())

    async def _read(self, reader: FeedReader) -> list[Entry]:
        """Discards messages of a reader that was replaced meanwhile."""
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
            first = next_offset(self._feed.topic.log, reader.offset)
            if first <= reader.offset or reader is not self._reader:
                raise
            _log.error(
                "%s: subscription %s continues at offset %d: retention has removed the rows from %d up to it",
                self._feed.topic.name, self.name, first, reader.offset,
            )  # fmt: skip
            reader.skip_to(first)
            self._apply(self._state.removed_below(first, self._now_us()))
            return []

    async def _sleep(self, until_us: int | None) -> bool:
        """Wait for a change, or until that time. Returns whether that time is long past."""
        if until_us is None:
            await self._wake.wait()
            return False
        seconds = max(0, until_us - self._clock.monotonic_us()) / 1e6
        timer = asyncio.get_running_loop().call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
        return self._clock.monotonic_us() - until_us > PAUSE_US

    # --- decisions

    def _now_us(self) -> int:
        self._state.log_end = self._feed.end
        return self._clock.monotonic_us()

    def _apply(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Deliver():
                    self._deliver(decision)
                case SetAside():
                    task = asyncio.ensure_future(self._publish_letter(decision, self._state.incarnation))
                    self._letters.add(task)
                    task.add_done_callback(self._letters.discard)
                case Dropped():
                    self.counts.gave_up(Poison.DROP)
                    _log.warning(
                        "%s: subscription %s drops offset %d after %d deliveries: %s",
                        self._feed.topic.name, self.name, decision.offset, decision.attempts, decision.reason,
                    )  # fmt: skip
                case Blocked():
                    _log.error(
                        "%s: subscription %s waits for offset %d, which was not acknowledged after %d deliveries (%s)",
                        self._feed.topic.name, self.name, decision.offset, decision.attempts, decision.reason,
                    )  # fmt: skip
        self.counts.timeouts = self._state.timeouts
        if self._state.changed and not self.deleted:
            self._changed(self)
        self._wake.set()

    def _deliver(self, decision: Deliver) -> None:
        stream = self.consumers[decision.consumer].stream
        assert stream is not None
        assert isinstance(decision.item, Entry)
        stream.put(decision.item)
        self.counts.deliveries += 1
        self.counts.redeliveries += decision.attempt > 1

    async def _publish_letter(self, decision: SetAside, incarnation: int) -> None:
        assert isinstance(decision.item, Entry)
        offset = decision.item.offset
        try:
            await self._set_aside(self, decision.item, decision.attempts, decision.reason)
        except (FrazilError, OSError) as error:
            self.counts.letters_failed += 1
            _log.error("%s: subscription %s keeps a poison message: %s", self._feed.topic.name, self.name, error)
            permanent = isinstance(error, InvalidInput | InvalidName)
            self._apply(
                self._state.not_set_aside(
                    offset, incarnation, self._now_us(), permanent=permanent, reason=f"no dead letter: {error}"
                )
            )
            return
        if incarnation == self._state.incarnation and not self.cursor.is_acked(offset):
            self.counts.gave_up(Poison.DEAD_LETTER)
        self._apply(self._state.set_aside(offset, incarnation, self._now_us()))

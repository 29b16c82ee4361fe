"""A subscription as a pure state machine: events go in, decisions come out.

It does no I/O, reads no clock and never waits, so that a model test can drive it through millions of histories. A
message that was read and is not done is in exactly one of these places:

    _new       read, in offset order, not examined yet
    _parked    key-shared: after another message of its key, or its owner is disconnected
    _released  key-shared: the message before it is done, so it may be delivered
    _in_flight delivered, no answer yet
    _retries   delivered before, to be redelivered when it is due
    _aside     poison, being published as a dead letter

The caller reads more when `wants_items`, stores `progress()` when `changed`, and calls `time_passed` at `wake_at_us`.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Iterator

from frazil.broker.delivery.alarms import Alarms
from frazil.broker.delivery.assignment import Kind, Member, assignment_of
from frazil.broker.delivery.items import Blocked, Decision, Deliver, Dropped, InFlight, Item, SetAside
from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.delivery.progress import Progress
from frazil.broker.subscriptions.cursor import Cursor
from frazil.core.settings.broker import Poison

PARKED_MAX = 1_000
"""Key-shared: messages held behind others of their key. The window limits their bytes."""
TIMED_OUT, DISCONNECTED, RESTARTED = "the acknowledgement took too long", "the consumer disconnected", "a restart"


class SubscriptionState:
    def __init__(self, kind: Kind, policy: DeliveryPolicy, progress: Progress, log_end: int) -> None:
        kept = progress.clipped(log_end)
        self.kind = kind
        self.policy = policy
        self.durable_end = kept.cursor
        """The cursor after a crash."""
        self.incarnation = kept.incarnation
        self.cursor = Cursor(kept.cursor, ((one.start, one.end) for one in kept.done))
        self.log_end = log_end
        self.next_offset = kept.cursor
        """The next message to read."""
        self.changed = kept != progress
        """Whether `progress()` differs from its last result."""
        self.members: dict[str, Member] = {}
        self._connected = 0
        self.timeouts = 0
        """Deliveries that timed out, for the metrics."""
        self._attempts: dict[int, int] = dict(kept.attempts)
        self._assignment = assignment_of(kind)
        self._clear()

    def _clear(self) -> None:
        self._new: deque[Item] = deque()
        self._parked: dict[bytes, deque[Item]] = {}
        self._away: set[bytes] = set()
        self._released: list[tuple[int, Item]] = []
        self._in_flight: dict[int, InFlight] = {}
        self._deadlines = Alarms(self._is_deadline)
        self._retries: dict[int, tuple[int, Item]] = {}
        self._due = Alarms(self._is_due_time)
        self._stalled: list[int] = []
        self._aside: dict[int, Item] = {}
        self._poison: dict[int, str] = {}
        self._parked_count = 0
        self._held_bytes = 0
        self._window_bytes = 0

    # --- queries of the caller

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def retrying(self) -> int:
        return len(self._retries) + len(self._aside)

    @property
    def held_bytes(self) -> int:
        """Bytes of all messages that were read and are not done."""
        return self._held_bytes

    @property
    def blocked_by(self) -> int | None:
        """The oldest poison message that blocks newer ones."""
        return min(self._poison, default=None)

    @property
    def wants_items(self) -> bool:
        """Whether the caller should read from `next_offset`."""
        return self.has_room and self.next_offset < self.log_end

    @property
    def has_room(self) -> bool:
        """Whether a message published now could be read and delivered."""
        return (
            self._connected > 0
            and not self._new
            and not self._poison
            and self._parked_count < PARKED_MAX
            and (self._held_bytes < self.policy.window_bytes_max or not self._held_bytes)
            and self._window_has_room()
        )

    def wake_at_us(self) -> int | None:
        """When `time_passed` is due next; None if there is no deadline."""
        moments = (self._deadlines.next_us(), self._due.next_us())
        return min((one for one in moments if one is not None), default=None)

    def progress(self) -> Progress:
        """Return the state to store."""
        self.changed = False
        return Progress(self.incarnation, self.cursor.end, tuple(self.cursor.above()), dict(self._attempts))

    # --- events: the topic

    def published(self, log_end: int, now_us: int) -> list[Decision]:
        self.log_end = max(self.log_end, log_end)
        return list(self._dispatch(now_us))

    def fetched(self, items: Iterable[Item], now_us: int) -> list[Decision]:
        """Add messages from `next_offset` on, in order. Offsets may be missing if their rows no longer exist."""
        for item in items:
            if item.offset < self.next_offset:
                continue
            self._skip(item.offset)
            self.next_offset = item.offset + 1
            if not self.cursor.is_acked(item.offset):
                self._new.append(item)
                self._held_bytes += item.size_bytes
        return list(self._dispatch(now_us))

    def removed_below(self, first_offset: int, now_us: int) -> list[Decision]:
        """The topic no longer has these messages. Those already read are still delivered."""
        if first_offset > self.next_offset:
            self._skip(first_offset)
            self.next_offset = first_offset
        return list(self._dispatch(now_us))

    def _skip(self, offset: int) -> None:
        if self.next_offset < offset:
            self.cursor.finish(self.next_offset, offset)
            self._attempts = {at: count for at, count in self._attempts.items() if not self.cursor.is_acked(at)}
            self.changed = True

    # --- events: consumers

    def joined(self, name: str, key_filters: tuple[str, ...], now_us: int) -> list[Decision]:
        """Add a consumer, which stays known while it is disconnected; or replace its filters."""
        member = self.members.get(name)
        if member is None:
            self.members[name] = Member(name, key_filters)
            return []
        if member.key_filters == key_filters:
            return []
        decisions = self.disconnected(name, now_us)
        member.set_filters(key_filters)
        self._recheck_keys()
        return [*decisions, *self._dispatch(now_us)]

    def connected(self, name: str, now_us: int) -> list[Decision]:
        """A known consumer has a new stream. Messages in flight on its earlier stream are redelivered at once."""
        decisions = self.disconnected(name, now_us)
        member = self.members[name]
        member.connected = True
        self._connected += 1
        self._assignment.connected(member)
        self._recheck_keys()
        return [*decisions, *self._dispatch(now_us)]

    def disconnected(self, name: str, now_us: int, unsent: Collection[int] = ()) -> list[Decision]:
        """Redeliver the messages in flight at once. `unsent` were never sent to the consumer: they are no attempts."""
        member = self.members[name]
        if not member.connected:
            return []
        member.connected = False
        self._connected -= 1
        self._assignment.disconnected(member)
        self._recheck_keys()
        for offset in unsent:
            if offset in member.in_flight:
                self._take_back(offset, now_us)
        lost = sorted(member.in_flight)
        failed = [decision for offset in lost for decision in self._failed(offset, now_us, now_us, DISCONNECTED)]
        return [*failed, *self._dispatch(now_us)]

    def removed(self, name: str, now_us: int) -> list[Decision]:
        """Forget a consumer: nothing is held for it any more."""
        decisions = self.disconnected(name, now_us)
        del self.members[name]
        self._recheck_keys()
        return [*decisions, *self._dispatch(now_us)]

    # --- events: answers

    def acked(self, offset: int, incarnation: int | None, now_us: int) -> list[Decision]:
        """Late and duplicate acks are accepted. Acks of another incarnation, or beyond the log, are ignored."""
        if not self._is_of_us(offset, incarnation) or self.cursor.is_acked(offset):
            return []
        self._finish(offset)
        return list(self._dispatch(now_us))

    def nacked(
        self, offset: int, incarnation: int | None, now_us: int, delay_us: int | None = None, reason: str = ""
    ) -> list[Decision]:
        if not self._is_of_us(offset, incarnation) or offset not in self._in_flight:
            return []
        delay_us = self.policy.retry_delay_us(self._attempts[offset], delay_us)
        return [*self._failed(offset, now_us, now_us + delay_us, reason), *self._dispatch(now_us)]

    def is_out(self, offset: int) -> bool:
        """Whether the message is delivered but not done."""
        return offset in self._in_flight or offset in self._retries

    def _is_of_us(self, offset: int, incarnation: int | None) -> bool:
        """Whether the answer is for this incarnation; without an incarnation it counts only for a message in flight."""
        if incarnation is None:
            return self.is_out(offset)
        return incarnation == self.incarnation and 0 <= offset < self.log_end

    def set_aside(self, offset: int, incarnation: int, now_us: int) -> list[Decision]:
        """The dead letter is durable."""
        if incarnation != self.incarnation or offset not in self._aside:
            return []
        self._finish(offset)
        return list(self._dispatch(now_us))

    def not_set_aside(
        self, offset: int, incarnation: int, now_us: int, *, permanent: bool = False, reason: str = ""
    ) -> list[Decision]:
        """The dead letter could not be published: retry later. If it never can be, the message blocks."""
        if incarnation != self.incarnation or offset not in self._aside:
            return []
        item = self._aside.pop(offset)
        decisions: list[Decision] = [self._block(offset, reason)] if permanent else []
        self._retry(item, now_us + self.policy.delay_us_max)
        return [*decisions, *self._dispatch(now_us)]

    # --- events: time, policy, reset

    def time_passed(self, now_us: int) -> list[Decision]:
        decisions: list[Decision] = []
        for offset in self._deadlines.due(now_us):
            delay_us = self.policy.retry_delay_us(self._attempts[offset])
            self.timeouts += 1
            decisions += self._failed(offset, now_us, now_us + delay_us, TIMED_OUT)
        return [*decisions, *self._dispatch(now_us)]

    def stalled(self, now_us: int) -> list[Decision]:
        """Restart all delivery timeouts after the broker stalled: consumers must not pay for a pause of the broker."""
        deadline_us = now_us + self.policy.ack_timeout_us
        for offset, flight in self._in_flight.items():
            self._in_flight[offset] = InFlight(flight.item, flight.member, deadline_us)
            self._deadlines.add(deadline_us, offset)
        return list(self._dispatch(now_us))

    def policy_set(self, policy: DeliveryPolicy, now_us: int) -> list[Decision]:
        """Apply a policy. Blocking messages follow it at their next delivery."""
        self.policy = policy
        for offset in list(self._poison):
            del self._poison[offset]
            if offset in self._retries:
                self._retry(self._retries[offset][1], now_us)
        return list(self._dispatch(now_us))

    def stored(self, progress: Progress) -> None:
        """`progress()` is durable. A later reset counts once it is stored itself."""
        if progress.incarnation == self.incarnation:
            self.durable_end = progress.cursor

    def reset(self, offset: int, incarnation: int, now_us: int) -> list[Decision]:
        """Restart at an offset, as another incarnation. Consumers stay connected; messages in flight are void."""
        self.durable_end = min(self.durable_end, offset)
        self.incarnation = incarnation
        self.cursor = Cursor(offset)
        self.next_offset = offset
        self.changed = True
        self._attempts.clear()
        self._clear()
        for member in self.members.values():
            member.in_flight.clear()
        return list(self._dispatch(now_us))

    # --- decisions

    def _dispatch(self, now_us: int) -> Iterator[Decision]:
        """Dispatch due retries, then messages whose key became free, then new ones; each in offset order."""
        self._collect_due(now_us)
        yield from self._dispatch_retries(now_us)
        yield from self._dispatch_released(now_us)
        yield from self._dispatch_new(now_us)

    def _collect_due(self, now_us: int) -> None:
        for offset in self._due.due(now_us):
            heapq.heappush(self._stalled, offset)

    def _dispatch_retries(self, now_us: int) -> Iterator[Decision]:
        """A retry that no consumer can take stalls until consumers change, or until another message is done."""
        waiting, self._stalled = self._stalled, []
        blocked_by = self.blocked_by
        while waiting:
            offset = heapq.heappop(waiting)
            retry = self._retries.get(offset)
            if retry is None or retry[0] > now_us:
                continue  # done, or postponed since
            if blocked_by is not None and offset > blocked_by:
                heapq.heappush(self._stalled, offset)
                continue
            member = self._assignment.pick(retry[1].key, self.policy.window_max)
            if member is None:
                heapq.heappush(self._stalled, offset)
                if self.kind is not Kind.KEY_SHARED:
                    self._stalled += waiting  # no consumer has room for any of them
                    heapq.heapify(self._stalled)
                    return
                continue
            del self._retries[offset]
            yield from self._deliver(retry[1], member, now_us)

    def _dispatch_released(self, now_us: int) -> Iterator[Decision]:
        while self._released:
            _, item = self._released[0]
            if self.cursor.is_acked(item.offset):
                heapq.heappop(self._released)
                self._held_bytes -= item.size_bytes
                self._release(item.key)
            elif self._may_go(item):
                heapq.heappop(self._released)
                yield from self._dispatch_of_key(item, now_us)
            else:
                return

    def _dispatch_new(self, now_us: int) -> Iterator[Decision]:
        while self._new:
            item = self._new[0]
            if self.cursor.is_acked(item.offset):
                self._new.popleft()
                self._held_bytes -= item.size_bytes
            elif self.kind is Kind.KEY_SHARED and item.key in self._parked:
                self._new.popleft()
                self._park(item)
            elif not self._may_go(item):
                return
            elif self.kind is Kind.KEY_SHARED:
                self._new.popleft()
                yield from self._dispatch_of_key(item, now_us)
            else:
                member = self._assignment.pick(item.key, self.policy.window_max)
                if member is None:
                    return
                self._new.popleft()
                self._window_bytes += item.size_bytes
                yield from self._deliver(item, member, now_us)

    def _dispatch_of_key(self, item: Item, now_us: int) -> Iterator[Decision]:
        """Deliver the first message of a key, keep it for a disconnected consumer, or skip it if no consumer accepts
        it."""
        member = self._assignment.pick(item.key, self.policy.window_max)
        if member is not None:
            self._parked.setdefault(item.key, deque())
            self._window_bytes += item.size_bytes
            yield from self._deliver(item, member, now_us)
        elif any(one.accepts(item.key) for one in self.members.values()):
            self._parked.setdefault(item.key, deque()).appendleft(item)
            self._parked_count += 1
            self._away.add(item.key)
        else:
            self._parked.setdefault(item.key, deque())
            self._held_bytes -= item.size_bytes
            self._done(item.offset)
            self._release(item.key)

    def _deliver(self, item: Item, member: Member, now_us: int) -> Iterator[Decision]:
        """Deliver once more, or handle poison, including a message whose last attempt ended with a crash."""
        offset = item.offset
        attempts = self._attempts.get(offset, 0)
        if attempts >= self.policy.attempts_max and offset not in self._poison:
            if self.policy.poison is not Poison.BLOCK:
                yield from self._poisoned(item, RESTARTED, now_us)
                return
            yield self._block(offset, RESTARTED)
            if self.blocked_by != offset:
                self._retry(item, now_us)
                return
        deadline_us = now_us + self.policy.ack_timeout_us
        self._in_flight[offset] = InFlight(item, member, deadline_us)
        self._deadlines.add(deadline_us, offset)
        member.in_flight.add(offset)
        self._attempts[offset] = attempts + 1
        self.changed = True
        yield Deliver(member.name, item, attempts + 1)

    def _failed(self, offset: int, now_us: int, due_us: int, reason: str) -> Iterator[Decision]:
        """A delivery ended without an ack, for any reason."""
        flight = self._in_flight.pop(offset)
        flight.member.in_flight.discard(offset)
        self.changed = True
        if self._attempts[offset] < self.policy.attempts_max:
            self._retry(flight.item, due_us)
        else:
            yield from self._poisoned(flight.item, reason, now_us)

    def _take_back(self, offset: int, now_us: int) -> None:
        flight = self._in_flight.pop(offset)
        flight.member.in_flight.discard(offset)
        self._attempts[offset] -= 1
        self._retry(flight.item, now_us)

    def _poisoned(self, item: Item, reason: str, now_us: int) -> Iterator[Decision]:
        offset, attempts = item.offset, self._attempts[item.offset]
        if self.policy.poison is Poison.BLOCK or offset in self._poison:
            if offset not in self._poison:
                yield self._block(offset, reason)
            self._retry(item, now_us + self.policy.delay_us_max)
        elif self.policy.poison is Poison.DROP:
            self._aside[offset] = item
            self._finish(offset)
            yield Dropped(offset, attempts, reason)
        else:
            self._aside[offset] = item
            yield SetAside(item, attempts, reason)

    def _block(self, offset: int, reason: str) -> Blocked:
        self._poison[offset] = reason
        return Blocked(offset, self._attempts[offset], reason)

    # --- places

    def _may_go(self, item: Item) -> bool:
        blocked_by = self.blocked_by
        if blocked_by is not None and item.offset > blocked_by:
            return False
        return self._window_has_room(item.size_bytes)

    def _window_has_room(self, size_bytes: int = 0) -> bool:
        count = len(self._in_flight) + len(self._retries) + len(self._aside)
        if count >= self.policy.window_max:
            return False
        return count == 0 or self._window_bytes + size_bytes <= self.policy.window_bytes_max

    def _retry(self, item: Item, due_us: int) -> None:
        self._retries[item.offset] = (due_us, item)
        self._due.add(due_us, item.offset)

    def _park(self, item: Item) -> None:
        self._parked[item.key].append(item)
        self._parked_count += 1

    def _release(self, key: bytes) -> None:
        """The delivered message of this key is done: the next one may be delivered."""
        waiting = self._parked[key]
        while waiting:
            item = waiting.popleft()
            self._parked_count -= 1
            if not self.cursor.is_acked(item.offset):
                heapq.heappush(self._released, (item.offset, item))
                return
            self._held_bytes -= item.size_bytes
        del self._parked[key]

    def _recheck_keys(self) -> None:
        """Consumers changed: a key may have a connected owner now, or no consumer that accepts it."""
        away, self._away = self._away, set()
        for key in away:
            self._release(key)

    def _finish(self, offset: int) -> None:
        """Mark a message as done, wherever it is."""
        flight = self._in_flight.pop(offset, None)
        item = flight.item if flight is not None else self._aside.pop(offset, None)
        if flight is not None:
            flight.member.in_flight.discard(offset)
        elif item is None and (retry := self._retries.pop(offset, None)) is not None:
            item = retry[1]
        self._poison.pop(offset, None)
        self._done(offset)
        if item is not None:
            self._held_bytes -= item.size_bytes
            self._window_bytes -= item.size_bytes
            if self.kind is Kind.KEY_SHARED:
                self._release(item.key)

    def _done(self, offset: int) -> None:
        self._attempts.pop(offset, None)
        self.cursor.ack(offset)
        self.changed = True

    def _is_deadline(self, deadline_us: int, offset: int) -> bool:
        flight = self._in_flight.get(offset)
        return flight is not None and flight.deadline_us == deadline_us

    def _is_due_time(self, due_us: int, offset: int) -> bool:
        retry = self._retries.get(offset)
        return retry is not None and retry[0] == due_us

"""Random histories of a subscription's state machine, compared with what a subscription promises."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.items import Blocked, Decision, Deliver, Dropped, SetAside
from frazil.broker.delivery.policy import Backoff, DeliveryPolicy
from frazil.broker.delivery.progress import Progress
from frazil.broker.delivery.state import SubscriptionState
from frazil.core.settings.broker import Poison

KEYS = [b"a", b"b", b"ab", b"c"]
FILTERS = [(), ("a*",), ("b",), ("b", "c")]
FETCH_MAX = 3


@dataclass(frozen=True)
class Message:
    offset: int
    key: bytes
    size_bytes: int


class SubscriptionModel(RuleBasedStateMachine):
    """Publishes, connects, answers, fails, resets and restarts in any order, and keeps the books of the promises."""

    @initialize(
        kind=st.sampled_from(Kind),
        poison=st.sampled_from(Poison),
        window_max=st.integers(1, 5),
        window_bytes_max=st.sampled_from([1, 60, 1_000_000]),
        backoff=st.sampled_from(Backoff),
    )
    def begin(self, kind: Kind, poison: Poison, window_max: int, window_bytes_max: int, backoff: Backoff) -> None:
        self.kind = kind
        self.policy = DeliveryPolicy(
            window_max, window_bytes_max, ack_timeout_us=100, redeliveries_max=2, delay_us=10, delay_us_max=40,
            backoff=backoff, poison=poison,
        )  # fmt: skip
        self.now_us = 0
        self.log: list[Message] = []
        self.incarnation = 1
        self.machine = SubscriptionState(kind, self.policy, Progress(1, 0), 0)
        self.saved = self.machine.progress()
        self.consumers: dict[str, tuple[str, ...]] = {}
        self.connected: list[str] = []
        self.flight: dict[int, str] = {}
        self.letters: set[int] = set()
        self.finished: set[int] = set()
        self.skipped: set[int] = set()
        self.delivered: set[int] = set()
        self.attempts: dict[int, int] = {}
        self.saved_attempts: dict[int, int] = {}
        self.blocked: set[int] = set()
        self.kept_in_window: set[int] = set()

    # --- what the machine decided

    def apply(self, decisions: list[Decision]) -> None:
        self.note_skipped()
        for decision in decisions:
            match decision:
                case Deliver(consumer, item, attempt):
                    self.check_delivery(consumer, item.offset, attempt)
                    self.flight[item.offset] = consumer
                    self.delivered.add(item.offset)
                    self.attempts[item.offset] = attempt
                case SetAside(item, attempts, _):
                    assert self.policy.poison is Poison.DEAD_LETTER
                    assert attempts >= self.policy.attempts_max
                    self.flight.pop(item.offset, None)
                    self.letters.add(item.offset)
                case Dropped(offset, attempts, _):
                    assert self.policy.poison is Poison.DROP
                    assert attempts >= self.policy.attempts_max
                    self.flight.pop(offset, None)
                    self.finished.add(offset)
                case Blocked(offset, attempts, _):
                    assert attempts >= self.policy.attempts_max
                    self.blocked.add(offset)
        self.note_skipped()

    def check_delivery(self, consumer: str, offset: int, attempt: int) -> None:
        assert offset < len(self.log)
        assert offset not in self.finished, "a finished message was delivered"
        assert offset not in self.flight, "a message is in flight twice"
        assert offset not in self.letters, "a message is delivered while its dead letter is published"
        assert consumer in self.connected
        assert attempt == self.attempts.get(offset, 0) + 1, "an attempt was forgotten or counted twice"
        if offset not in self.blocked:
            assert attempt <= self.policy.attempts_max
        if self.blocked:
            assert offset <= min(self.blocked), "a message passed a blocked one"
        if self.kind in (Kind.EXCLUSIVE, Kind.FAILOVER):
            assert set(self.flight.values()) <= {consumer}, "two consumers are active"
        if self.kind is Kind.KEY_SHARED:
            key = self.log[offset].key
            assert not any(self.log[other].key == key for other in self.flight), "two messages of a key in flight"
            older = [one.offset for one in self.log[:offset] if one.key == key and one.offset >= self.start()]
            assert all(one in self.finished for one in older), "a message overtook another of its key"
            assert self.accepts(consumer, key)
        elif offset not in self.delivered:
            assert all(one in self.delivered or one in self.finished for one in range(self.start(), offset)), (
                "a message was delivered for the first time before an older one"
            )
        if self.kind is Kind.SHARED:
            share = -(-self.policy.window_max // len(self.connected))
            assert sum(one == consumer for one in self.flight.values()) < share

    def start(self) -> int:
        return self.reset_to if hasattr(self, "reset_to") else 0

    def accepts(self, consumer: str, key: bytes) -> bool:
        filters = self.consumers[consumer]
        return not filters or any(one.rstrip("*") == key.decode()[: len(one.rstrip("*"))] for one in filters)

    def note_skipped(self) -> None:
        """Messages that are done without an answer: only those that no known consumer accepts."""
        for offset in range(self.machine.cursor.end if self.machine.cursor.end > self.start() else self.start()):
            self.note_if_skipped(offset)
        for done in self.machine.cursor.above():
            for offset in range(done.start, done.end):
                self.note_if_skipped(offset)

    def note_if_skipped(self, offset: int) -> None:
        if offset < self.start() or offset in self.finished:
            return
        poison_done = self.policy.poison is Poison.DROP and self.attempts.get(offset, 0) >= self.policy.attempts_max
        if poison_done:
            return  # its `Dropped` is among the decisions that are being applied
        assert self.kind is Kind.KEY_SHARED, f"offset {offset} was passed over"
        assert not any(self.accepts(one, self.log[offset].key) for one in self.consumers), "a wanted message was lost"
        self.finished.add(offset)
        self.skipped.add(offset)

    def ended(self, offsets: list[int]) -> None:
        for offset in offsets:
            self.flight.pop(offset, None)

    # --- events

    @rule(keys=st.lists(st.tuples(st.sampled_from(KEYS), st.sampled_from([1, 30, 200])), min_size=1, max_size=4))
    def publish(self, keys: list[tuple[bytes, int]]) -> None:
        for key, size in keys:
            self.log.append(Message(len(self.log), key, size))
        self.apply(self.machine.published(len(self.log), self.now_us))

    @precondition(lambda self: self.machine.wants_items)
    @rule(count=st.integers(1, FETCH_MAX))
    def fetch(self, count: int) -> None:
        start = self.machine.next_offset
        before = self.machine.held_bytes
        assert before < self.policy.window_bytes_max or before == 0, "it reads though it holds enough"
        self.apply(self.machine.fetched(self.log[start : start + count], self.now_us))

    @rule(name=st.sampled_from(["x", "y", "z"]), filters=st.sampled_from(FILTERS))
    def subscribe(self, name: str, filters: tuple[str, ...]) -> None:
        if self.kind is Kind.EXCLUSIVE and self.consumers and name not in self.consumers:
            return
        if self.kind is not Kind.KEY_SHARED:
            filters = ()
        changed = self.consumers.get(name, filters) != filters
        self.consumers[name] = filters
        if changed and name in self.connected:
            self.connected.remove(name)
            self.ended([offset for offset, who in self.flight.items() if who == name])
        self.apply(self.machine.joined(name, filters, self.now_us))

    @precondition(lambda self: self.consumers)
    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.consumers)))
        self.ended([offset for offset, who in self.flight.items() if who == name])
        if name in self.connected:
            self.connected.remove(name)
        self.connected.append(name)
        self.apply(self.machine.connected(name, self.now_us))

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.connected))
        self.connected.remove(name)
        lost = sorted(offset for offset, who in self.flight.items() if who == name)
        unsent = data.draw(st.sets(st.sampled_from(lost))) if lost else set()
        self.ended(lost)
        for offset in unsent:
            self.attempts[offset] -= 1
        self.apply(self.machine.disconnected(name, self.now_us, unsent))

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), tells=st.booleans())
    def ack(self, data: st.DataObject, tells: bool) -> None:
        offset = data.draw(st.sampled_from(sorted(self.flight)))
        self.acknowledge(offset, self.incarnation if tells else None)

    @precondition(lambda self: self.delivered - self.finished)
    @rule(data=st.data())
    def late_ack(self, data: st.DataObject) -> None:
        """Of a message that was delivered some time, maybe before a restart."""
        self.acknowledge(data.draw(st.sampled_from(sorted(self.delivered - self.finished))), self.incarnation)

    def acknowledge(self, offset: int, incarnation: int | None) -> None:
        self.flight.pop(offset, None)
        self.letters.discard(offset)
        self.blocked.discard(offset)
        self.finished.add(offset)
        self.apply(self.machine.acked(offset, incarnation, self.now_us))

    @rule(offset=st.integers(-1, 30), answer=st.sampled_from(["ack", "nack", "letter", "no letter"]))
    def answer_of_another_incarnation(self, offset: int, answer: str) -> None:
        before = self.machine.progress()
        other = self.incarnation + 7
        self.apply(
            {
                "ack": lambda: self.machine.acked(offset, other, self.now_us),
                "nack": lambda: self.machine.nacked(offset, other, self.now_us),
                "letter": lambda: self.machine.set_aside(offset, other, self.now_us),
                "no letter": lambda: self.machine.not_set_aside(offset, other, self.now_us),
            }[answer]()
        )
        assert self.machine.progress() == before
        self.machine.changed = True

    @rule(beyond=st.integers(0, 3))
    def ack_beyond_the_log(self, beyond: int) -> None:
        assert self.machine.acked(len(self.log) + beyond, self.incarnation, self.now_us) == []

    @precondition(lambda self: self.flight)
    @rule(data=st.data(), delay_us=st.none() | st.integers(0, 100))
    def nack(self, data: st.DataObject, delay_us: int | None) -> None:
        offset = data.draw(st.sampled_from(sorted(self.flight)))
        del self.flight[offset]
        self.apply(self.machine.nacked(offset, self.incarnation, self.now_us, delay_us, "refused"))

    @precondition(lambda self: self.letters)
    @rule(data=st.data(), outcome=st.sampled_from(["stored", "failed", "refused"]))
    def dead_letter(self, data: st.DataObject, outcome: str) -> None:
        offset = data.draw(st.sampled_from(sorted(self.letters)))
        self.letters.discard(offset)
        if outcome == "stored":
            self.finished.add(offset)
            self.apply(self.machine.set_aside(offset, self.incarnation, self.now_us))
        else:
            permanent = outcome == "refused"
            self.apply(self.machine.not_set_aside(offset, self.incarnation, self.now_us, permanent=permanent))

    @rule(us=st.integers(1, 150))
    def pass_time(self, us: int) -> None:
        self.now_us += us
        late = [o for o, flight in self.machine._in_flight.items() if flight.deadline_us <= self.now_us]
        self.ended(late)
        self.apply(self.machine.time_passed(self.now_us))

    @rule(us=st.integers(1, 10_000))
    def stand_still(self, us: int) -> None:
        """A pause of the broker ends no delivery: each has its whole time again."""
        self.now_us += us
        before = dict(self.flight)
        self.apply(self.machine.stalled(self.now_us))
        assert before.items() <= self.flight.items()
        deadlines = {flight.deadline_us for flight in self.machine._in_flight.values()}
        assert deadlines <= {self.now_us + self.policy.ack_timeout_us}

    @rule(
        poison=st.sampled_from(Poison), redeliveries=st.integers(0, 3), window_max=st.integers(1, 5),
        window_bytes_max=st.sampled_from([1, 60, 1_000_000]),
    )  # fmt: skip
    def set_policy(self, poison: Poison, redeliveries: int, window_max: int, window_bytes_max: int) -> None:
        """What is out already may be more than the new window allows. Poison that blocked is judged anew."""
        machine = self.machine
        self.kept_in_window = {*machine._in_flight, *machine._retries, *machine._aside}
        self.policy = replace(
            self.policy, poison=poison, redeliveries_max=redeliveries, window_max=window_max,
            window_bytes_max=window_bytes_max,
        )  # fmt: skip
        self.blocked = set()
        self.apply(machine.policy_set(self.policy, self.now_us))

    @rule()
    def store(self) -> None:
        self.saved = self.machine.progress()
        self.saved_attempts = dict(self.attempts)

    @rule(lost=st.integers(0, 3))
    def crash(self, lost: int) -> None:
        """Only what was stored remains, and the log may have lost its tail: its offsets go to other messages."""
        del self.log[max(len(self.log) - lost, self.start(), 0) :]
        end = len(self.log)
        self.machine = SubscriptionState(self.kind, self.policy, self.saved, end)
        done = set(range(self.start(), min(self.saved.cursor, end)))
        done |= {o for one in self.saved.done for o in range(one.start, one.end) if o < end}
        self.finished = done
        self.skipped &= done
        self.attempts = {o: n for o, n in self.saved.attempts.items() if o < end}
        self.delivered = {o for o in self.delivered if o < end and o in self.attempts}
        self.flight, self.letters, self.blocked, self.connected = {}, set(), set(), []
        for name, filters in self.consumers.items():
            self.apply(self.machine.joined(name, filters, self.now_us))

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        self.reset_to = data.draw(st.integers(0, len(self.log)))
        self.incarnation += 1
        self.flight, self.letters, self.blocked = {}, set(), set()
        self.finished, self.delivered, self.skipped = set(), set(), set()
        self.attempts = {}
        self.apply(self.machine.reset(self.reset_to, self.incarnation, self.now_us))
        self.store()  # a reset is stored before it is answered

    # --- what always holds

    @invariant()
    def the_books_agree(self) -> None:
        machine = self.machine
        assert set(machine._in_flight) == set(self.flight)
        assert set(machine._aside) == self.letters
        done = set(range(self.start(), machine.cursor.end)) | {
            offset for one in machine.cursor.above() for offset in range(one.start, one.end)
        }
        assert done == self.finished, "what is done is not what was acknowledged, dropped, set aside or unwanted"

    @invariant()
    def no_message_is_lost_or_held_twice(self) -> None:
        machine = self.machine
        places = [
            *(one.offset for one in machine._new),
            *(one.offset for parked in machine._parked.values() for one in parked),
            *(offset for offset, _ in machine._released),
            *machine._in_flight,
            *machine._retries,
            *machine._aside,
        ]
        held = [offset for offset in places if offset not in self.finished]
        assert len(held) == len(set(held)), "a message is held twice"
        for offset in range(self.start(), machine.next_offset):
            assert offset in self.finished or offset in held, "a message is lost"
        assert machine.held_bytes == sum(self.log[offset].size_bytes for offset in places)

    @invariant()
    def the_window_holds(self) -> None:
        machine = self.machine
        window = [*machine._in_flight, *machine._retries, *machine._aside]
        is_of_before = set(window) <= self.kept_in_window
        assert len(window) <= self.policy.window_max or is_of_before
        size = sum(self.log[offset].size_bytes for offset in window)
        assert size == machine._window_bytes
        assert size <= self.policy.window_bytes_max or len(window) == 1 or is_of_before

    @invariant()
    def what_waits_for_time_has_an_alarm(self) -> None:
        wake = self.machine.wake_at_us()
        deadlines = [flight.deadline_us for flight in self.machine._in_flight.values()]
        later = [due for due, _ in self.machine._retries.values() if due > self.now_us]
        expected = min([*deadlines, *later], default=None)
        if expected is not None:
            assert wake is not None
            assert wake <= expected, "a retry or a time-out waits for ever"

    def teardown(self) -> None:
        """Whatever happened, a consumer that accepts everything and stays finishes every message."""
        if not hasattr(self, "machine"):
            return
        name = next(iter(self.consumers), "x")
        self.subscribe(name, ())
        for other in list(self.connected):
            self.connected.remove(other)
            self.ended([offset for offset, who in self.flight.items() if who == other])
            self.apply(self.machine.disconnected(other, self.now_us))
        self.connected.append(name)
        self.apply(self.machine.connected(name, self.now_us))
        for other in [one for one in self.consumers if one != name]:
            del self.consumers[other]
            self.apply(self.machine.removed(other, self.now_us))
        for _ in range(10 * (len(self.log) + 10)):
            for offset in sorted(self.flight):
                if offset in self.flight:
                    self.acknowledge(offset, self.incarnation)
            for offset in sorted(self.letters):
                self.letters.discard(offset)
                self.finished.add(offset)
                self.apply(self.machine.set_aside(offset, self.incarnation, self.now_us))
            while self.machine.wants_items:
                self.fetch(FETCH_MAX)
            if self.machine.cursor.end == len(self.log):
                return
            self.pass_time(40)
        raise AssertionError("a message never arrived")


TestSubscription = SubscriptionModel.TestCase
TestSubscription.settings = settings(stateful_step_count=60)

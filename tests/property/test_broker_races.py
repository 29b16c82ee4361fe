"""The real broker over a metadata store that is slow, refuses, or loses its answers, against a simple oracle.

Every call to the store waits until the test answers it: in order, for the broker has one thread for them, by success,
by a refusal without effect, or by an effect without an answer. Meanwhile messages are published, taken, acknowledged
and refused, subscriptions and topics are made, reset and deleted, and the broker crashes. What is done of a
subscription must have been acknowledged in that very incarnation, or be a dead letter; a refused call changes nothing;
and at the end all that is left is delivered.

Steps are drawn from a seed. The log and the retries run in their own time, so a seed repeats a history only roughly: a
failure prints all its steps.
"""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import frazil
from frazil.broker.admin import BrokerAdmin
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.subscriptions.consumer import Stream
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.dead_letters import OFFSET, dead_letter_topic
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.clock import SystemClock
from frazil.core.errors import FrazilError, MetadataUnavailable
from frazil.core.names import TopicName
from frazil.core.rows import Origin
from frazil.core.settings.broker import BrokerSettings, Poison
from frazil.meta.sqlite import SqliteStore

TOPIC, SUB = "/default/orders", "s"
NAME = TopicName.parse(TOPIC)
LETTERS = dead_letter_topic(NAME)
SETTINGS = BrokerSettings(
    redelivery_delay_ms=1,
    redelivery_delay_ms_max=2,
    ack_timeout_ms=60_000,
    progress_flush_ms=600_000,
    max_unacked_messages=4,
)
OPS_MAX = 3


@dataclass
class Pending:
    """A call to the store that waits for the test."""

    work: Callable[[], Any]
    answer: asyncio.Future[Any]


@dataclass(eq=False)
class Op:
    """A call of an administrator or a client that is under way."""

    what: str
    task: asyncio.Task[Any]
    before: Any
    alone: bool
    lost: bool = False


@dataclass
class Ledger:
    """One incarnation of the subscription."""

    start: int
    acked: set[int] = field(default_factory=set)


async def inline(call: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """In place of a thread, so that the order of everything is the test's."""
    return call(*args, **more)


class BrokerRaces:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.steps: list[str] = []
        kind = self.rng.choice(list(Kind))
        self.folder = Path(tempfile.mkdtemp(prefix="frazil-races-"))
        self.threads = mock.patch("asyncio.to_thread", inline)
        self.threads.start()
        self.kind = kind
        self.loop = asyncio.new_event_loop()
        self.storage = frazil.open(None)
        self.meta = SqliteStore(self.folder / "meta.db")
        self.pending: list[Pending] = []
        self.ops: list[Op] = []
        self.rows: dict[str, dict[int, bytes]] = {}
        self.ledgers: dict[int, Ledger] = {}
        self.starts: set[int] = {0}
        self.taken: list[tuple[int, int]] = []
        self.stream: Stream | None = None
        self.count = 0
        self.waits = False
        self.run(self.start())
        self.run(self.broker.create_producer(TOPIC, "p", reliable=True))
        self.run(self.broker.subscribe(TOPIC, SUB, kind, "c"))
        self.starts.add(0)
        self.waits = True
        self.reconnect()

    # --- the world

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(asyncio.wait_for(work, 30))

    def on_loop(self, call: Callable[[], Any]) -> Any:
        return self.run(inline(call))

    async def start(self) -> None:
        self.broker = Broker(self.storage, self.meta, SETTINGS, SystemClock())
        self.admin = BrokerAdmin(self.broker)
        self.broker._records._run = self.gate  # type: ignore[method-assign]
        await self.broker.start()

    async def gate(self, work: Callable[[], Any]) -> Any:
        if not self.waits:
            return work()
        call = Pending(work, self.loop.create_future())
        self.pending.append(call)
        return await call.answer

    def settle(self) -> None:
        """Until all that can go on without the test has gone on."""

        async def turns() -> None:
            for _ in range(30):
                await asyncio.sleep(0)
            for _ in range(500):
                if self.pending or not any(one._letters for one in self.subscriptions()):
                    return
                await asyncio.sleep(0.002)

        self.run(turns())
        for op in [one for one in self.ops if one.task.done()]:
            self.ops.remove(op)
            self.ended(op)

    def subscriptions(self) -> list[Subscription]:
        topic = self.broker.topics.get(NAME)
        return [] if topic is None else [one for one in topic.subscriptions.values() if isinstance(one, Subscription)]

    def subscription(self) -> Subscription | None:
        return next(iter(self.subscriptions()), None)

    def seen(self) -> Any:
        one = self.subscription()
        topic = self.broker.topics.get(NAME)
        return (
            None if topic is None else (topic.log_id, sorted(topic.producers)),
            None if one is None else (one.incarnation, one.own_policy, sorted(one.consumers)),
            {entry.key: entry.value for entry in self.meta.list("/broker/") if str(LETTERS) not in entry.key},
            [name for name in self.storage.topics() if name != str(LETTERS)],
        )

    def begin_op(self, what: str, work: Coroutine[Any, Any, Any]) -> None:
        alone = not self.ops
        for op in self.ops:
            op.alone = False
        self.ops.append(Op(what, self.loop.create_task(work), self.seen(), alone))
        self.settle()

    def ended(self, op: Op) -> None:
        error = op.task.exception()
        assert error is None or isinstance(error, FrazilError), error
        if error is not None and op.alone and not op.lost and op.what != "flush":  # which stores what is known anyway
            after = self.seen()
            assert after == op.before, f"{op.what} was refused ({error}) and had an effect"

    # --- messages

    def log_id(self) -> str | None:
        topic = self.broker.topics.get(NAME)
        return None if topic is None else topic.log_id

    def publish(self) -> None:
        topic = self.broker.topics.get(NAME)
        if topic is None:
            return
        key = self.rng.choice(["x", "y"])
        for _ in range(self.rng.randint(1, 3)):
            self.count += 1
            payload = b"%d" % self.count
            offset = self.run(topic.publish(OutgoingMessage(payload, key, {}, Origin("p", 1))))
            self.rows.setdefault(str(topic.log_id), {})[offset] = payload
        self.settle()

    def take(self) -> None:
        stream, log_id = self.stream, str(self.log_id())
        while stream is not None and len(stream) and not stream.ended:
            entry = self.run(stream.take())
            assert entry is not None
            assert self.rows[log_id][entry.offset] == entry.message.payload, "a message of another topic"
            self.taken.append((entry.offset, stream.incarnation))

    def answer_message(self) -> None:
        """Also of an earlier incarnation: that counts for nothing."""
        one = self.subscription()
        if one is None or not self.taken:
            return
        offset, incarnation = self.rng.choice(self.taken)
        if self.rng.random() < 0.3:
            self.on_loop(lambda: one.nack(offset, None, "refused", incarnation))
        else:
            self.on_loop(lambda: one.ack(offset, incarnation))
            if incarnation == one.incarnation:
                self.ledgers[incarnation].acked.add(offset)
        self.settle()

    def reconnect(self) -> None:
        one = self.subscription()
        number = next((each.id for each in one.consumers.values()), None) if one is not None else None
        self.stream = None if number is None else self.on_loop(lambda: self.broker.connect(number)[3])
        self.settle()

    # --- calls that change something

    def call(self) -> None:
        if len(self.ops) >= OPS_MAX:
            return
        what = self.rng.choice(["subscribe", "unsubscribe", "reset", "policy", "delete", "create", "flush", "flush"])
        self.steps[-1] += " " + what
        one, topic = self.subscription(), self.broker.topics.get(NAME)
        end = 0 if topic is None else topic.end
        if what == "subscribe":
            self.starts |= set(range(end, end + 60))  # it begins at the end of the moment when it gets its turn
            self.begin_op(what, self.broker.subscribe(TOPIC, SUB, self.kind, "c"))
        elif what == "unsubscribe":
            self.begin_op(what, self.admin_call(lambda: self.admin.delete_subscription(NAME, SUB)))
        elif what == "reset" and one is not None:
            offset = self.rng.randint(0, end)
            self.starts.add(offset)
            self.begin_op(what, self.admin_call(lambda: self.admin.reset(NAME, SUB, offset)))
        elif what == "policy":
            poison = self.rng.choice([Poison.BLOCK, Poison.DEAD_LETTER])
            wanted = OwnPolicy(poison=poison, redeliveries_max=self.rng.randint(0, 2))
            self.begin_op(what, self.admin_call(lambda: self.admin.set_policy(NAME, SUB, lambda _: wanted)))
        elif what == "delete" and self.rng.random() < 0.3:
            self.starts.add(0)
            self.begin_op(what, self.broker.delete_topic(NAME, force=True))
        elif what == "create":
            self.begin_op(what, self.broker.create_producer(TOPIC, "p", reliable=True))
        elif what == "flush":
            self.begin_op(what, self.broker._progress.flush())

    async def admin_call(self, call: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        await call()

    def answer_store(self, outcome: str | None = None) -> None:
        if not self.pending:
            return
        call = self.pending.pop(0)
        if call.answer.done():
            return
        outcome = outcome or self.rng.choice(["done", "done", "done", "refused", "lost"])
        self.steps[-1] += " " + outcome
        if outcome == "refused":
            call.answer.set_exception(MetadataUnavailable("store", "it does not answer"))
        elif outcome == "lost":
            call.work()
            for op in self.ops:
                op.lost = True
            call.answer.set_exception(MetadataUnavailable("store", "it does not answer", unclear=True))
        else:
            try:
                call.answer.set_result(call.work())
            except FrazilError as error:
                call.answer.set_exception(error)
        self.settle()

    def crash(self) -> None:
        """All that was not stored is forgotten; calls to the store that wait are never made."""

        async def end() -> None:
            self.waits = False
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for topic in self.broker.topics.values():
                if topic.feed is not None:
                    topic.feed.close()

        crashed, tasks = self.broker, asyncio.all_tasks(self.loop)
        crashed._progress.flush = mock.AsyncMock()  # type: ignore[method-assign]
        self.run(end())
        self.pending.clear()
        self.ops.clear()
        self.stream = None
        self.run(self.start())
        self.waits = True
        self.reconnect()

    # --- what always holds

    def letters(self) -> set[int]:
        """Offsets of dead letters, by their payloads: those of a deleted topic count for nothing."""
        if str(LETTERS) not in self.storage.topics():
            return set()
        rows = self.rows.get(str(self.log_id()), {})
        found = (
            (int(one.attributes[OFFSET]), one.payload) for one in self.storage.topic(str(LETTERS)).read("earliest")
        )
        return {offset for offset, payload in found if rows.get(offset) == payload}

    def only_what_was_acknowledged_is_done(self) -> None:
        one = self.subscription()
        if one is None:
            return
        ledger = self.ledgers.get(one.incarnation)
        if ledger is None:
            assert one.cursor.end in self.starts, "it begins where nobody asked it to"
            ledger = self.ledgers[one.incarnation] = Ledger(one.cursor.end)
        done = set(range(ledger.start, one.cursor.end))
        done |= {offset for held in one.cursor.above() for offset in range(held.start, held.end)}
        passed = done - ledger.acked
        assert not passed or passed <= self.letters(), "a message was passed over"

    def walk(self, steps: int) -> None:
        weights = {
            self.publish: 3, self.take: 4, self.answer_message: 6, self.reconnect: 1, self.call: 5,
            self.answer_store: 8, self.crash: 1,
        }  # fmt: skip
        for step in self.rng.choices(list(weights), list(weights.values()), k=steps):
            self.steps.append(step.__name__)
            step()
            self.only_what_was_acknowledged_is_done()

    def close(self) -> None:
        self.waits = False
        self.run(self.broker.close())
        self.storage.close()
        self.meta.close()
        self.loop.close()
        self.threads.stop()
        shutil.rmtree(self.folder)

    def finish(self) -> None:
        """Whatever happened, all that is left is delivered."""
        self.steps.append("finish")
        self.waits = False
        while self.pending:
            self.answer_store("done")
        for _ in range(100):
            self.settle()
            if not self.ops:
                break
        assert not self.ops, "a call never ended"
        self.only_what_was_acknowledged_is_done()
        one = self.subscription()
        if one is None:
            return
        self.reconnect()
        if self.stream is None:
            return

        async def drain() -> None:
            assert one is not None
            assert self.stream is not None
            while one.cursor.end < one.end:
                taking = asyncio.ensure_future(self.stream.take())
                done, _ = await asyncio.wait([taking], timeout=0.05)
                if not done:  # dead letters are published meanwhile
                    taking.cancel()
                    continue
                entry = taking.result()
                assert entry is not None
                assert self.rows[str(self.log_id())][entry.offset] == entry.message.payload
                one.ack(entry.offset, self.stream.incarnation)
                self.ledgers[one.incarnation].acked.add(entry.offset)

        self.run(drain())
        self.only_what_was_acknowledged_is_done()


def race(seed: int, steps: int) -> None:
    races = BrokerRaces(seed)
    try:
        races.walk(steps)
        races.finish()
    except BaseException as error:
        error.add_note(f"seed {seed}: {', '.join(races.steps)}")
        raise
    finally:
        races.close()


@pytest.mark.parametrize("seed", range(12))
def test_calls_that_meet_messages_crashes_and_a_store_that_fails_break_no_promise(seed: int) -> None:
    race(seed, 80)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
@pytest.mark.timeout(900)
def test_the_same_with_many_more_seeds(part: int) -> None:
    for seed in range(1_000 + 60 * part, 1_000 + 60 * (part + 1)):
        race(seed, 150)

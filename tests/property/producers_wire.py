"""Clients of one owner without a network: real senders, whose streams call the owner's log and fail as told."""

from __future__ import annotations

import queue
import random
import threading
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from harness import FakeClock, FaultyDisk, PowerCut, abandon, opened, settings_of

from frazil import FrazilError, OwnerUnreachable, ProducerState, Sent, SyncMode, Topic
from frazil.client.identity import ProducerIdentity
from frazil.client.topic import RemoteTopic
from frazil.client.window import Batch
from frazil.core.process.own_process import OwnProcess
from frazil.core.sequences import NO_EPOCH, ProducerOpening
from frazil.core.settings import MIB
from frazil.log.write.group import Part

TOPIC = "/default/orders"
ADDRESS = "grpc://nowhere:1"
SECONDS_MAX = 60.0

OPEN_FAULTS = ("lost before", "lost after", "give up")
WRITE_FAULTS = ("lost before", "lost after", "late", "power")


@dataclass
class Published:
    """One call of a user, and how it ended."""

    payloads: list[bytes]
    done: threading.Event = field(default_factory=threading.Event)
    first_offset: int = -1
    error: FrazilError | None = None


class Owner:
    """The process that owns the log, on a disk that outlives it. One call at a time."""

    def __init__(self, page_bytes: int) -> None:
        self.guard = threading.RLock()
        self.disk = FaultyDisk(page_bytes=page_bytes)
        self.streams: list[LogStream] = []
        self.late: list[tuple[LogStream, Batch]] = []
        self.violations: list[str] = []
        self.holders: dict[str, str] = {}
        """Who opened each name last, as the test saw it: what the log remembers of that is tested."""
        self._clock = FakeClock()
        self._settings = settings_of(SyncMode.ALWAYS)
        self.storage = opened(self.disk, self._settings, self._clock)
        self.log_id = self.topic.log.log_id

    @property
    def topic(self) -> Topic:
        return self.storage.topic(TOPIC)

    def restart(self, seed: int) -> None:
        """The power goes, and comes again."""
        with self.guard:
            self.end()
            self.disk = self.disk.crash(random.Random(seed))
            self.storage = opened(self.disk, self._settings, self._clock)

    def end(self) -> None:
        with self.guard:
            for stream in self.streams:
                stream.cut()
            self.streams.clear()
            abandon(self.storage)

    def deliver_late(self) -> None:
        """What older connections still bring, now that their clients have others. Their answers reach nobody."""
        late, self.late = self.late, []
        for stream, batch in late:
            try:
                stream.apply(batch)
            except FrazilError:
                continue  # as it should be; if not, its rows are there twice


class Wire:
    """What a sender takes for its connection: that of one client."""

    address = ADDRESS
    give_up_ms = 600_000

    def __init__(self, owner: Owner) -> None:
        self.process = OwnProcess("the wire", "")
        self.clock = FakeClock()
        self.owner = owner
        self.open_faults: deque[str] = deque()
        self.write_faults: deque[tuple[str, int]] = deque()
        self.gate = threading.Event()
        self.gate.set()
        self.waits = False
        self.holds_after_fault = False
        self.user_opened = True

    def act(self, action: str, **asked: Any) -> dict[str, int]:
        assert action == "producer"
        state = self.owner.topic.producer_state(asked["producer"])
        return {"epoch": NO_EPOCH if state is None else state.epoch}

    def learn_brokers(self) -> None:
        """There is one broker."""

    def learn(self, error: FrazilError, topic: str | None) -> None:
        """Nothing here names another broker."""

    def next_write_fault(self) -> tuple[str, int]:
        fault, number = self.write_faults.popleft() if self.write_faults else ("", 0)
        if fault and self.holds_after_fault:
            self.gate.clear()
        return fault, number

    def let_go(self) -> None:
        self.holds_after_fault = False
        self.gate.set()

    def pass_gate(self) -> None:
        self.waits = True
        assert self.gate.wait(SECONDS_MAX)
        self.waits = False

    def opened(self, producer: str, opening: ProducerOpening, before: ProducerState | None) -> None:
        """It got an epoch: by its user's will, or because no other client has the name, or the log forgot the name."""
        holder = self.owner.holders.get(producer)
        if not self.user_opened and before is not None and holder not in (None, opening.client):
            self.owner.violations.append(f"{opening} took {producer} from {holder} by itself")
        self.owner.holders[producer] = opening.client
        self.user_opened = False


class LogStream:
    """In place of `PutStream`: the owner's side of it included."""

    def __init__(
        self, connection: Wire, _topic: str, _log_id: str, schema: pa.Schema, producer: str, opening: ProducerOpening
    ) -> None:
        self._wire, self._owner, self._producer = connection, connection.owner, producer
        self.schema = schema
        self._answers: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._ended = self._refused = False
        connection.pass_gate()
        fault = connection.open_faults.popleft() if connection.open_faults else ""
        if fault and connection.holds_after_fault:
            connection.gate.clear()
        with self._owner.guard:
            if fault == "give up":  # it has waited for the owner for as long as it may
                connection.clock.advance(connection.give_up_ms * 1_000)
            if fault in ("lost before", "give up"):
                raise _lost()
            topic = self._owner.topic
            before = topic.producer_state(producer)
            opened = topic.log.open_producer(producer, opening)
            connection.opened(producer, opening, before)
            self._owner.deliver_late()
            if fault == "lost after":
                raise _lost()
            self._owner.streams.append(self)
        state = opened.state
        self.epoch, self.next_sequence, self.resumed = state.epoch, state.next_sequence, opened.resumed
        self._number = state.stream
        self.stored = {(sequence, rows): offset for sequence, offset, rows in state.recent}

    def write(self, batch: Batch) -> None:
        fault, number = self._wire.next_write_fault()
        with self._owner.guard:
            if self._ended or fault == "lost before":
                self.cut()
                raise _lost()
            if self._refused:
                return  # the owner reads no more of it
            if fault == "late":
                self._owner.late.append((self, batch))
                self.cut()
                return
            if fault == "power":
                self._owner.disk.cut_power_after(number % 8)
            try:
                answer = {"acked": [[batch.sequence, self.apply(batch)]]}
            except PowerCut:
                self._owner.restart(number)
                return
            except FrazilError as error:
                answer = {"sequence": batch.sequence, "error": error.as_dict()}
                self._refused = True
            if fault == "power":  # it was over before that
                self._owner.restart(number)
                return
            if fault == "lost after":
                self.cut()
                return
            self._answers.put(answer)
            if self._refused:
                self._answers.put(None)

    def apply(self, batch: Batch) -> int:
        rows = [row.payload for row in batch.rows] if isinstance(batch.rows, list) else batch.rows
        sent = Sent(self._producer, self.epoch, batch.sequence, self._number)
        return self._owner.topic.publish_many(rows, sent=sent).start

    def read(self) -> dict[str, Any] | None:
        return self._answers.get(timeout=SECONDS_MAX * 10)

    def half_close(self) -> None:
        self._answers.put(None)

    def finish(self) -> FrazilError | None:
        return _lost() if self._ended else None

    def cut(self) -> None:
        self._ended = True
        self._answers.put(None)


class Client:
    """One program that publishes to the topic."""

    def __init__(self, owner: Owner, producer: str, *, shared: bool) -> None:
        self.wire = Wire(owner)
        self.fenced = False
        self.pending: list[Published] = []
        told = {
            "topic": TOPIC,
            "log_id": owner.log_id,
            "schema": None,
            "message_bytes_max": MIB,
            "batch_bytes_max": MIB,
            "batch_rows_max": 1_000,
        }
        self.identity = ProducerIdentity(producer, shared=shared)
        self.topic = RemoteTopic(self.wire, told, self.identity, MIB, self.wire.clock)  # type: ignore[arg-type]

    @property
    def held(self) -> bool:
        return not self.wire.gate.is_set()

    def begin(self, payloads: list[bytes]) -> Published:
        published = Published(payloads)
        try:
            if len(payloads) == 1:
                self.topic.begin_publish(payloads[0], None, None, _settled, published)
            else:
                self.topic.begin_publish_many(payloads, _settled, published)
        except FrazilError as error:
            published.error = error
            published.done.set()
        else:
            self.pending.append(published)
        return published

    def wait(self) -> list[Published]:
        """Until all is answered; or, behind a closed gate, until the client stands there."""
        for published in self.pending:
            for _ in range(int(SECONDS_MAX / 0.001)):
                if published.done.wait(0.001) or (self.held and self.wire.waits):
                    break
            else:
                raise AssertionError("a publish has no outcome")
        done = [published for published in self.pending if published.done.is_set()]
        self.pending = [published for published in self.pending if published not in done]
        return done

    def open_producer(self) -> None:
        if self.identity.fenced is not None:
            self.fenced, self.wire.user_opened = False, True
        self.topic.open_producer()

    def end(self) -> None:
        self.wire.let_go()
        self.wait()
        self.topic.close()


def _settled(part: Part) -> None:
    """Its tokens stand in the order of its rows."""
    offset = part.first_offset
    for published in part.tokens:
        published.first_offset, published.error = offset, part.error
        offset += len(published.payloads)
        published.done.set()


def _lost() -> OwnerUnreachable:
    return OwnerUnreachable(ADDRESS, "the wire was cut")

"""Producers that number their rows, and a power cut before each single operation of the disk.

In each state in which the cut may leave the disk the log must know its producers exactly: as many rows of each as it
counts, no epoch given back, and a batch sent again is there once.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pytest
from harness import FakeClock, FaultyDisk, abandon, opened, read_rows, settings_of

from frazil import (
    FrazilError,
    ProducerFenced,
    RetentionSettings,
    Sent,
    SequenceForgotten,
    SequenceGap,
    Settings,
    Storage,
    SyncMode,
    Topic,
)

KIB = 1024
SECOND_US = 1_000_000
TOPIC = "/a/numbered"
NARROW = pa.schema([pa.field("value", pa.binary(), nullable=False)])
WIDER = pa.schema([pa.field("value", pa.binary(), nullable=False), pa.field("more", pa.int64())])

pytestmark = pytest.mark.timeout(300)


@dataclass
class Batch:
    sent: Sent
    rows: list[bytes]
    first: int | None = None
    """Where it is, once that was acknowledged."""


@dataclass
class Known:
    """What clients know: epochs they were given, batches in the order they sent them, and how much is durable."""

    epochs: dict[str, int] = field(default_factory=dict)
    clients: dict[str, str] = field(default_factory=dict)
    batches: list[Batch] = field(default_factory=list)
    durable: int = 0
    made: bool = False

    def last_of(self, producer: str) -> Batch | None:
        return next((batch for batch in reversed(self.batches) if batch.sent.producer == producer), None)


class Clients:
    """Two producers and a plain publisher take turns through rotation, retention, a new schema and restarts."""

    def __init__(self, disk: FaultyDisk, mode: SyncMode) -> None:
        retention = RetentionSettings(bytes=100 * KIB, age_ms=1_000_000)
        self.disk = disk
        self.settings: Settings = settings_of(mode, retention=retention, file_age_ms=1_000_000)
        self.clock = FakeClock()
        self.known = Known()
        self.storage: Storage | None = None

    def run(self) -> None:
        self.reopen()
        self.take("p")
        for _ in range(4):
            self.send("p", 2, 8 * KIB)
        self.take("q")
        self.send("q", 1, 100)
        self.plain()
        self.send("p", 1, 30 * KIB)
        self.take("p")
        self.send("p", 3, 9 * KIB)
        self.reopen()
        self.send("q", 2, 2 * KIB)
        assert self.storage is not None
        self.storage.change_schema(TOPIC, WIDER)
        self.send("p", 1, 20 * KIB)
        self.take("q")
        for _ in range(3):
            self.send("q", 1, 30 * KIB)
            self.send("p", 1, 3 * KIB)
        self.storage.maintain()
        self.note_durable()
        self.send("p", 1, 10)
        self.take("p")
        self.clock.step_wall(3600 * SECOND_US)
        self.storage.maintain()  # removes every row by its age
        self.note_durable()
        self.reopen()
        self.send("p", 2, 10)
        self.send("q", 1, 10)

    @property
    def topic(self) -> Topic:
        assert self.storage is not None
        return self.storage.topic(TOPIC)

    def reopen(self) -> None:
        if self.storage is not None:
            self.storage.close()
        self.storage = opened(self.disk, self.settings, self.clock)
        self.storage.topic(TOPIC, schema=None if self.known.made else NARROW)
        self.known.made = True
        self.note_durable()

    def take(self, producer: str) -> None:
        client = f"{producer} {self.disk.operations}"
        self.known.epochs[producer] = self.topic.open_producer(producer, client=client).epoch
        self.known.clients[producer] = client
        self.note_durable()

    def send(self, producer: str, count: int, size: int) -> None:
        last = self.known.last_of(producer)
        sequence = last.sent.sequence + len(last.rows) if last else 0
        rows = [_value(producer, sequence + row, size) for row in range(count)]
        batch = Batch(Sent(producer, self.known.epochs[producer], sequence), rows)
        self.known.batches.append(batch)
        batch.first = publish(self.topic, rows, batch.sent)
        self.note_durable()

    def plain(self) -> None:
        publish(self.topic, [b"plain 0 "], None)
        self.note_durable()

    def note_durable(self) -> None:
        self.known.durable = self.topic.stats().durable_end


def _value(producer: str, number: int, size: int) -> bytes:
    return f"{producer} {number} ".encode() + random.Random(number).randbytes(size)


def publish(topic: Topic, rows: list[bytes], sent: Sent | None) -> int:
    assert topic.schema is not None
    columns = {"value": pa.array(rows, pa.binary())}
    if "more" in topic.schema.names:
        columns["more"] = pa.nulls(len(rows), pa.int64())
    return topic.publish_many(pa.record_batch(columns, schema=topic.schema), sent=sent).start


def counts_are_true(topic: Topic, known: Known) -> None:
    """Each producer's next number is how many of its rows the log holds or held; each is there once, in order."""
    topic.sync()
    _, found = read_rows(topic)
    for producer in known.epochs:
        state = topic.producer_state(producer)
        numbers = [int(value.split(b" ")[1]) for _, _, value in found if value.startswith(producer.encode() + b" ")]
        following = state.next_sequence if state else 0
        assert numbers == list(range(following - len(numbers), following)), f"{producer}: {numbers}, then {following}"
        sizes = {batch.sent.sequence: len(batch.rows) for batch in known.batches if batch.sent.producer == producer}
        assert all(sizes[sequence] == rows for sequence, _, rows in (state.recent if state else ()))


def holds(disk: FaultyDisk, known: Known, clients: Clients) -> None:
    storage = opened(disk, clients.settings, clients.clock)
    try:
        if not known.made and TOPIC not in storage.topics():
            return
        topic = storage.topic(TOPIC)
        assert topic.stats().end >= known.durable
        counts_are_true(topic, known)
        for producer, epoch in known.epochs.items():
            state = topic.producer_state(producer)
            assert state is not None
            assert state.epoch >= epoch, "an epoch was given back"
            last = known.last_of(producer)
            if last is not None:
                sent_again(topic, last)
            if state.epoch == epoch:
                assert topic.open_producer(producer, client=known.clients[producer]).epoch == epoch, "not known again"
            taken = topic.open_producer(producer)
            assert taken.epoch > epoch
            if last is not None:
                with pytest.raises(ProducerFenced):
                    publish(topic, last.rows, last.sent)
                another = Sent(producer, taken.epoch, last.sent.sequence)
                if taken.next_sequence > another.sequence:
                    with pytest.raises(SequenceForgotten):  # it is another client's
                        publish(topic, last.rows, another)
                else:
                    sent_again(topic, Batch(another, last.rows))
        counts_are_true(topic, known)
        storage.close()
        storage = opened(disk, clients.settings, clients.clock)
        counts_are_true(storage.topic(TOPIC), known)
    finally:
        abandon(storage)


def sent_again(topic: Topic, batch: Batch) -> None:
    """Not acknowledged, or acknowledged: the client sends its last batch once more."""
    end, durable_end = topic.log.written_end, topic.log.durable_end
    state = topic.producer_state(batch.sent.producer)
    assert state is not None
    try:
        first = publish(topic, batch.rows, batch.sent)
    except ProducerFenced:
        assert batch.sent.epoch < state.epoch  # it was sent under a name taken since
        return
    except SequenceGap:
        assert topic.log.context.settings.sync_mode is not SyncMode.ALWAYS, "an acknowledged batch is lost"
        return
    stored = state.next_sequence > batch.sent.sequence
    assert topic.log.written_end == end + (0 if stored else len(batch.rows)), "stored twice, or not at all"
    if batch.first is not None and batch.first < durable_end:
        assert first == batch.first, "the same batch has other offsets"


def sweep(mode: SyncMode, seeds: int, verify: Callable[[FaultyDisk, Known, Clients], None], *, every: int = 1) -> int:
    disk = FaultyDisk()
    clients = Clients(disk, mode)
    tried = 0

    def look(operation: str, path: Path) -> None:
        nonlocal tried
        if disk.operations % every:
            return
        for seed in range(seeds):
            tried += 1
            try:
                verify(disk.crash(random.Random(disk.operations * 1_000 + seed)), copy.deepcopy(clients.known), clients)
            except (Exception, pytest.fail.Exception) as error:
                error.add_note(f"power cut before operation {disk.operations} ({operation} {path}), seed {seed}")
                raise

    disk.watch(look)
    try:
        clients.run()
        look("end", Path())
    finally:
        disk.watch(None)
        abandon(clients.storage)
    return tried


@pytest.mark.parametrize("mode", list(SyncMode))
def test_a_power_cut_at_any_operation_neither_loses_nor_doubles_a_numbered_batch(mode: SyncMode) -> None:
    assert sweep(mode, 2, holds) > 200


def again_at_each_operation(disk: FaultyDisk, known: Known, clients: Clients) -> None:
    """The power goes again while the log recovers and its clients send again."""
    images: list[FaultyDisk] = []
    rng = random.Random(disk.operations)
    disk.watch(lambda operation, path: images.append(disk.crash(rng)))
    storage = opened(disk, clients.settings, clients.clock)
    try:
        topic = storage.topic(TOPIC)
        batch = known.batches[-1]
        if batch.first is None:
            publish(topic, batch.rows, batch.sent)
    except FrazilError:
        pass
    finally:
        disk.watch(None)
        abandon(storage)
    for image in images:
        holds(image, copy.deepcopy(known), clients)


@pytest.mark.long
def test_a_second_power_cut_while_it_is_sent_again_neither_loses_nor_doubles_it() -> None:
    def verify(disk: FaultyDisk, known: Known, clients: Clients) -> None:
        if known.batches:
            again_at_each_operation(disk, known, clients)

    assert sweep(SyncMode.ALWAYS, 1, verify) > 50

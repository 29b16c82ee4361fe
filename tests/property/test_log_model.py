"""A whole storage on a faulty disk against a model: whatever happens, in whatever order, promises are kept."""

from __future__ import annotations

import errno
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from harness import (
    SCHEMA,
    WIDER_SCHEMA,
    FakeClock,
    FaultyDisk,
    Model,
    PowerCut,
    TopicModel,
    abandon,
    adopt_storage,
    check_storage,
    note_beginnings,
    opened,
    publish_values,
    read_rows,
    settings_of,
)
from hypothesis import settings, stateful
from hypothesis import strategies as st

from frazil import (
    FrazilError,
    LogFailed,
    ProducerState,
    RetentionSettings,
    Sent,
    SequenceForgotten,
    Settings,
    Storage,
    SyncMode,
    TryLater,
)

KIB = 1024
NAMES = ["/a/one", "/a/two", "/b/typed"]
TYPED = "/b/typed"

PRODUCERS = ["p", "q"]

names = st.sampled_from(NAMES)
producers = st.sampled_from(PRODUCERS)
seeds = st.integers(0, 2**32 - 1)
sizes = st.sampled_from([0, 10, 900, 4 * KIB, 9 * KIB, 30 * KIB, 70 * KIB])
moments = st.integers(0, 12)


class LogMachine(stateful.RuleBasedStateMachine):
    mode = SyncMode.ALWAYS

    def __init__(self) -> None:
        super().__init__()
        self.model: Model = {}
        self.clock = FakeClock()
        self.storage: Storage | None = None
        self.count = 0
        self.sender_of: dict[bytes, str] = {}
        self.last_sent: dict[tuple[str, str], tuple[str, Sent, list[bytes]]] = {}
        self.epochs: dict[tuple[str, str], int] = {}
        self._excepthook = threading.excepthook
        threading.excepthook = self._ignore_power_cuts

    def _ignore_power_cuts(self, args: Any) -> None:
        if not isinstance(args.exc_value, PowerCut):
            self._excepthook(args)

    def teardown(self) -> None:
        abandon(self.storage)
        threading.excepthook = self._excepthook

    @stateful.initialize(
        page_bytes=st.sampled_from([512, 4096]),
        cache_bytes=st.sampled_from([0, 100 * KIB]),
        retention_kib=st.sampled_from([None, 100, 300]),
    )
    def begin(self, page_bytes: int, cache_bytes: int, retention_kib: int | None) -> None:
        retention = RetentionSettings(bytes=retention_kib and retention_kib * KIB, age_ms=3_600_000)
        self.settings: Settings = settings_of(
            self.mode, retention=retention, cache_bytes=cache_bytes, file_age_ms=60_000
        )
        self.disk = FaultyDisk(page_bytes=page_bytes)
        self.storage = opened(self.disk, self.settings, self.clock)

    # --- publishing

    @stateful.rule(name=names, count=st.integers(1, 4), size=sizes)
    def publish(self, name: str, count: int, size: int) -> None:
        group = self._new_group(count, size)
        self._attempt(lambda storage: self._publish(storage, name, group))

    @stateful.rule(name=names, publishers=st.integers(2, 4), size=sizes)
    def publish_at_once(self, name: str, publishers: int, size: int) -> None:
        groups = [self._new_group(1 + number % 2, size) for number in range(publishers)]
        self._attempt(lambda storage: self._publish_at_once(storage, name, groups))

    def _publish(self, storage: Storage, name: str, group: list[bytes], sent: Sent | None = None) -> None:
        topic = self._topic(storage, name)
        expected = self.model[name]
        expected.pending.append(group)
        try:
            first = publish_values(topic, group, sent)
        except TryLater:
            expected.pending.remove(group)  # 'nothing was written': it may never come up
            raise
        assert first == len(expected.rows)
        expected.pending.remove(group)
        expected.acknowledge(group)

    def _publish_at_once(self, storage: Storage, name: str, groups: list[list[bytes]]) -> None:
        topic = self._topic(storage, name)
        expected = self.model[name]
        expected.pending += groups
        outcomes: list[tuple[int, list[bytes]] | BaseException] = []
        barrier = threading.Barrier(len(groups))

        def work(group: list[bytes]) -> None:
            barrier.wait(30)
            try:
                outcomes.append((publish_values(topic, group), group))
            except TryLater as error:
                expected.pending.remove(group)
                outcomes.append(error)
            except (PowerCut, FrazilError, OSError) as error:
                outcomes.append(error)

        threads = [threading.Thread(target=work, args=(group,)) for group in groups]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
            assert not thread.is_alive(), "a publisher waits for ever"
        acknowledged = sorted((outcome for outcome in outcomes if isinstance(outcome, tuple)), key=lambda o: o[0])
        for first, group in acknowledged:
            assert first == len(expected.rows), "offsets have a gap"
            expected.pending.remove(group)
            expected.acknowledge(group)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        for error in sorted(errors, key=lambda error: not isinstance(error, PowerCut)):
            raise error

    def _new_group(self, count: int, size: int) -> list[bytes]:
        group = []
        for _ in range(count):
            self.count += 1
            group.append(b"%d." % self.count + random.Random(self.count).randbytes(size))
        return group

    # --- numbered by their producers

    @stateful.rule(name=names, producer=producers, count=st.integers(1, 4), size=sizes)
    def publish_numbered(self, name: str, producer: str, count: int, size: int) -> None:
        group = self._new_group(count, size)
        self.sender_of |= dict.fromkeys(group, producer)
        self._attempt(lambda storage: self._publish_numbered(storage, name, producer, group))

    def _publish_numbered(self, storage: Storage, name: str, producer: str, group: list[bytes]) -> None:
        topic = self._topic(storage, name)
        state = topic.producer_state(producer) or ProducerState(0, 0)
        sent = Sent(producer, state.epoch, state.next_sequence)
        self.last_sent[name, producer] = (topic.log.log_id, sent, group)
        self._publish(storage, name, group, sent)

    @stateful.rule(name=names, producer=producers)
    def send_again(self, name: str, producer: str) -> None:
        """The client did not get the answer, or so it thinks; it may even have restarted meanwhile."""
        if name in self.model:
            self._attempt(lambda storage: self._send_again(storage, name, producer))

    def _send_again(self, storage: Storage, name: str, producer: str) -> None:
        topic, expected = storage.topic(name), self.model[name]
        log_id, before, group = self.last_sent.get((name, producer), ("", Sent(producer, 0, 0), []))
        state = topic.producer_state(producer)
        if log_id != topic.log.log_id or state is None:
            return
        sent = Sent(producer, state.epoch, before.sequence)
        if sent.sequence == state.next_sequence:
            self.last_sent[name, producer] = (log_id, sent, group)
            self._publish(storage, name, group, sent)
        elif sent.sequence > state.next_sequence:
            assert self.mode is not SyncMode.ALWAYS, "a batch that came before this one is lost"
        elif sent != before:
            with pytest.raises(SequenceForgotten):  # the name was taken since: it is another client's
                publish_values(topic, group, sent)
        else:
            end = topic.log.written_end
            assert publish_values(topic, group, sent) == expected.rows.index(group[0]), "not where it was"
            assert topic.log.written_end == end, "stored twice"

    @stateful.rule(name=names, producer=producers)
    def take_a_name(self, name: str, producer: str) -> None:
        def act(storage: Storage) -> None:
            topic = storage.topic(name)
            before = self.epochs.get((topic.log.log_id, producer), -1)
            state = topic.open_producer(producer)
            assert state.epoch > before, "an epoch was given twice"
            self.epochs[topic.log.log_id, producer] = state.epoch

        if name in self.model:
            self._attempt(act)

    @stateful.invariant()
    def producers_are_counted_as_their_rows_are(self) -> None:
        for topic in self.storage.opened_topics() if self.storage else []:
            expected = self.model.get(topic.name)
            if expected is None or not expected.certain or expected.pending or topic.log.failed:
                continue
            for producer in PRODUCERS:
                state = topic.producer_state(producer)
                count = sum(self.sender_of.get(row) == producer for row in expected.rows)
                assert (state.next_sequence if state else 0) == count

    # --- topics

    @stateful.rule(name=names)
    def delete(self, name: str) -> None:
        if name not in self.model:
            return

        def act(storage: Storage) -> None:
            self.model[name].certain = False
            storage.delete_topic(name)
            del self.model[name]

        self._attempt(act)

    @stateful.rule()
    def change_schema(self) -> None:
        if TYPED in self.model:
            self._attempt(lambda storage: storage.change_schema(TYPED, WIDER_SCHEMA))

    def _topic(self, storage: Storage, name: str) -> Any:
        if name not in self.model:
            self.model[name] = TopicModel()
            try:
                storage.create_topic(name, schema=SCHEMA if name == TYPED else None)
            except TryLater:
                del self.model[name]  # 'nothing was written'
                raise
            self.model[name].certain = True
        return storage.topic(name)

    # --- reading

    @stateful.rule(name=names, seed=seeds)
    def read_from_anywhere(self, name: str, seed: int) -> None:
        def act(storage: Storage) -> None:
            expected, topic = self.model[name], storage.topic(name)
            stats = topic.stats()
            start = random.Random(seed).randint(stats.first_offset, stats.end)
            column = "_payload" if topic.schema is None else "value"
            found: list[bytes] = []
            for batch in topic.read_batches(start):
                assert batch.column("_offset").to_pylist()[0] == start + len(found)
                found += batch.column(column).to_pylist()
            assert found == expected.rows[start : stats.end]

        if name in self.model:
            self._attempt(act)

    # --- time

    @stateful.rule(seconds=st.sampled_from([-100, 1, 61, 3_000, 4_000]))
    def the_clock_moves(self, seconds: int) -> None:
        self.clock.step_wall(seconds * 1_000_000)

    @stateful.rule()
    def maintain(self) -> None:
        def act(storage: Storage) -> None:
            for topic in self.model.values():
                topic.first_max = len(topic.rows)
            storage.maintain()
            note_beginnings(storage, self.model)

        self._attempt(act)

    @stateful.rule(name=names)
    def sync(self, name: str) -> None:
        if name in self.model:
            self._attempt(lambda storage: storage.topic(name).sync())

    # --- what goes wrong

    @stateful.rule(operations=moments)
    def the_power_will_go(self, operations: int) -> None:
        self.disk.cut_power_after(operations)

    @stateful.rule(seed=seeds, again=st.none() | moments)
    def the_power_goes(self, seed: int, again: int | None) -> None:
        self._note_durable()
        self._recover(self.disk.crash(random.Random(seed)), seed, again)

    @stateful.rule(again=st.none() | moments, seed=seeds)
    def the_process_is_killed(self, again: int | None, seed: int) -> None:
        self._note_durable()
        self._recover(self.disk.kill(), seed, again, written_is_there=True)

    @stateful.rule()
    def restart(self) -> None:
        def act(storage: Storage) -> None:
            try:
                storage.close()
            except TryLater as error:
                raise OSError(errno.ENOSPC, "closed, but the ends could not be recorded") from error
            self.storage = opened(self.disk, self.settings, self.clock)
            check_storage(self.storage, self.model)
            for name, topic in self.model.items():
                assert self.storage.topic(name).stats().end == len(topic.rows), "a clean restart lost rows"
            adopt_storage(self.storage, self.model)

        self._attempt(act)

    @stateful.rule(room=st.sampled_from([0, 5, 2_000, 30_000]))
    def the_disk_is_full(self, room: int) -> None:
        self.disk.capacity_bytes = self.disk.used_bytes + room

    @stateful.rule()
    def there_is_room(self) -> None:
        self.disk.capacity_bytes = None

    @stateful.rule(after=st.integers(0, 4))
    def a_sync_will_fail(self, after: int) -> None:
        self.disk.fail("sync", errno.EIO, after=after)

    @stateful.rule(
        operation=st.sampled_from(["write", "truncate", "rename", "sync_folder", "remove"]), after=st.integers(0, 4)
    )
    def an_operation_will_fail(self, operation: Any, after: int) -> None:
        self.disk.fail(operation, errno.EIO, after=after)

    # --- the machinery

    def _attempt(self, act: Callable[[Storage], object]) -> None:
        """Do it; if the disk does not let us, be sure that what was promised before is still there."""
        assert self.storage is not None
        try:
            act(self.storage)
        except PowerCut:
            self._note_durable()
            self._recover(self.disk.crash(random.Random(self.count)), self.count, None)
        except TryLater:
            pass
        except (LogFailed, OSError):
            self._note_durable()
            self._recover(self.disk.kill(), self.count, None)
        else:
            self._note_durable()

    def _note_durable(self) -> None:
        assert self.storage is not None
        for topic in self.storage.opened_topics():
            expected = self.model.get(topic.name)
            if expected is not None and expected.certain:
                always = self.mode is SyncMode.ALWAYS
                expected.durable = len(expected.rows) if always else min(topic.log.durable_end, len(expected.rows))

    def _recover(self, disk: FaultyDisk, seed: int, again: int | None, *, written_is_there: bool = False) -> None:
        """Open what is left; the power may go again meanwhile."""
        durable = {name: topic.durable for name, topic in self.model.items()}
        if written_is_there:  # the system's cache outlives a process
            for topic in self.model.values():
                topic.durable = len(topic.rows)
        abandon(self.storage)
        self.storage = None
        disk.capacity_bytes = None
        disk.cut_power_after(again)
        storage = None
        try:
            storage = opened(disk, self.settings, self.clock)
            check_storage(storage, self.model)
        except PowerCut:
            abandon(storage)
            for name, topic in self.model.items():
                topic.durable = durable[name]
            disk = disk.crash(random.Random(seed + 1))
            storage = opened(disk, self.settings, self.clock)
            check_storage(storage, self.model)
        disk.cut_power_after(None)
        adopt_storage(storage, self.model)
        self.disk, self.storage = disk, storage

    @stateful.invariant()
    def what_is_read_is_what_was_published(self) -> None:
        """Looked at through the process that goes on, without touching the disk more than a reader does."""
        if self.storage is None or self.count % 5:
            return
        for name, expected in self.model.items():
            if expected.certain and name in self.storage.topics():
                try:
                    first, found = read_rows(self.storage.topic(name))
                except (PowerCut, OSError, FrazilError):
                    return
                values = [value for _, _, value in found]
                assert values == expected.rows[first : first + len(values)]


class PeriodicMachine(LogMachine):
    mode = SyncMode.PERIODIC


class NoneMachine(LogMachine):
    mode = SyncMode.NONE


@pytest.mark.timeout(600)
class TestAlways(LogMachine.TestCase):
    settings = settings(max_examples=200, stateful_step_count=40)


@pytest.mark.timeout(600)
class TestPeriodic(PeriodicMachine.TestCase):
    settings = settings(max_examples=100, stateful_step_count=40)


@pytest.mark.timeout(600)
class TestNone(NoneMachine.TestCase):
    settings = settings(max_examples=100, stateful_step_count=40)

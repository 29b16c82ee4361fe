"""Guards are asked only when rows would go, away from the log's locks and threads, and less and less in vain."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import frazil
from frazil.core.settings import KIB, RetentionSettings
from frazil.log.retention.enforcement import AGAIN_MS_MAX, AGAIN_MS_MIN, ANSWER_MS_MAX
from frazil.log.retention.guards import Guard, RetentionHold
from frazil.log.stats import TopicStats
from frazil.log.storage import Storage, open_storage
from frazil.log.topic_log import TopicLog
from frazil.testing import FakeClock

TOPIC = "/default/a"


class Counting:
    """Answers what it is told to, and counts how often it was asked."""

    name = "table"
    holds_rows = True

    def __init__(self, floor: int | Exception = 0) -> None:
        self.answer = floor
        self.asked = 0
        self.closed = False

    def concerns(self, log: TopicLog) -> bool:
        return True

    def floor(self, log: TopicLog) -> int:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    def close(self) -> None:
        self.closed = True


def storage_of(clock: FakeClock) -> Storage:
    wal = frazil.WalSettings(max_file_size=64 * KIB, retention=RetentionSettings(bytes=1))
    return open_storage(frazil.Settings(data=None, wal=wal), clock=clock)


def fill(storage: Storage, count: int = 60) -> None:
    for _ in range(count):
        storage.topic(TOPIC).publish(bytes(4 * KIB))


def ticked(storage: Storage) -> None:
    """As the clock does it, and then until the guards have answered."""
    for question in storage._maintenance.run(now=False):
        assert question.answered.wait(30)


def test_where_nothing_is_due_nobody_is_asked() -> None:
    with storage_of(FakeClock()) as storage:
        guard = Counting(60)
        storage.add_guard(guard)
        storage.topic(TOPIC).publish(b"one segment is never too many")
        for _ in range(3):
            storage.maintain()
        fill(storage)
        storage.maintain()
        assert guard.asked == 1
        storage.maintain()
        assert guard.asked == 1, "all that may go has gone"
    assert guard.closed


@pytest.mark.parametrize("answer", [0, frazil.LakeUnavailable("catalog", "it is away"), RuntimeError("a mistake")])
def test_one_that_lets_nothing_go_is_asked_again_later_and_later(answer: int | Exception) -> None:
    clock = FakeClock()
    with storage_of(clock) as storage:
        guard = Counting(answer)
        storage.add_guard(guard)
        fill(storage)
        delays_ms, last_us = [], clock.monotonic_us()
        while len(delays_ms) < 8:
            before = guard.asked
            ticked(storage)
            if guard.asked > before:
                delays_ms.append((clock.monotonic_us() - last_us) // 1_000)
                last_us = clock.monotonic_us()
            clock.advance(1_000_000)
        assert delays_ms[1] == AGAIN_MS_MIN
        assert delays_ms[-1] == AGAIN_MS_MAX
        assert storage.topic(TOPIC).stats().first_offset == 0
        assert [kept.guard for kept in storage.kept_by_guards()] == ([] if answer == 0 else ["table"])
        guard.answer = 60
        clock.advance(AGAIN_MS_MAX * 1_000)
        ticked(storage)
        assert storage.topic(TOPIC).stats().first_offset > 0
        assert storage.kept_by_guards() == []


def test_the_statistics_name_the_guard_that_holds_rows_back_and_since_when() -> None:
    clock = FakeClock()
    with storage_of(clock) as storage:
        table, acks = Counting(20), Counting(40)
        acks.name = "subscriptions"
        storage.add_guard(table)
        storage.add_guard(acks)
        topic = storage.topic(TOPIC)
        storage.maintain()
        assert topic.stats().held_back is None, "nothing is due"
        fill(storage)
        begun_us = clock.now_us()
        storage.maintain()
        held = topic.stats().held_back
        assert held == RetentionHold("table", 0, 20, None)
        assert held.since_us == begun_us
        clock.advance(1_000_000)
        table.answer = 30
        storage.maintain()
        held = topic.stats().held_back
        assert held == RetentionHold("table", 0, 30, None)
        assert held.since_us == begun_us, "it still holds some"
        table.answer = 60
        storage.maintain()
        held = topic.stats().held_back
        assert held == RetentionHold("subscriptions", 0, 40, None)
        assert held.since_us == begun_us + 1_000_000
        acks.answer = frazil.MetadataUnavailable("http://etcd:2379", "it is away")
        storage.maintain()
        told = topic.stats()
        assert told.held_back == RetentionHold("subscriptions", 0, None, acks.answer.message)
        assert TopicStats.of(told.as_dict()) == told
        acks.answer = 60
        storage.maintain()
        assert topic.stats().held_back is None


def test_an_answer_that_took_too_long_is_not_acted_on() -> None:
    clock = FakeClock()

    class Slow(Counting):
        def floor(self, log: TopicLog) -> int:
            clock.advance((ANSWER_MS_MAX + 1) * 1_000)
            return super().floor(log)

    with storage_of(clock) as storage:
        storage.add_guard(Slow(60))
        fill(storage)
        storage.maintain()
        assert storage.topic(TOPIC).stats().first_offset == 0
        assert "too old" in storage.kept_by_guards()[0].message


def test_a_policy_that_changed_while_the_guards_were_asked_removes_nothing_by_the_old_answer() -> None:
    with storage_of(FakeClock()) as storage:

        class Changing(Counting):
            def floor(self, log: TopicLog) -> int:
                storage.set_retention(TOPIC, RetentionSettings(until_acked=True))
                return super().floor(log)

        fill(storage)
        storage.add_guard(Changing(60))
        storage.maintain()
        assert storage.topic(TOPIC).stats().first_offset == 0


def test_one_that_hangs_shows_and_a_late_answer_after_the_end_removes_nothing(tmp_path: Path) -> None:
    clock, asked, go_on = FakeClock(), threading.Event(), threading.Event()

    class Hanging(Counting):
        def floor(self, log: TopicLog) -> int:
            asked.set()
            go_on.wait(60)
            return super().floor(log)

    storage = storage_of(clock)
    storage.add_guard(Hanging(60))
    fill(storage)
    (question,) = storage._maintenance.run(now=False)
    assert asked.wait(30)
    assert storage.kept_by_guards() == []
    clock.advance(10_000_000)
    assert storage.kept_by_guards()[0].message == "no answer for 10 s"
    assert storage._maintenance.run(now=False) == [question], "it is not asked twice"
    storage.topic(TOPIC).publish(b"goes on")
    log = storage.topic(TOPIC).log
    storage.close()
    go_on.set()
    for thread in threading.enumerate():
        if thread.name == "frazil-retention":
            thread.join(30)
    assert log.first_offset == 0


def test_guards_are_made_once_the_folder_is_owned_and_never_before(tmp_path: Path) -> None:
    made: list[str] = []

    def guards_of(name: str) -> list[Guard]:
        made.append(name)
        return []

    settings = frazil.Settings(data=tmp_path / "data")
    with open_storage(settings, guards_of=lambda: guards_of("first")):
        with pytest.raises(frazil.FolderInUse):
            open_storage(settings, guards_of=lambda: guards_of("second"))
        assert made == ["first"]


def test_guards_that_cannot_be_made_leave_the_folder_free(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path / "data")

    def failing() -> list[Guard]:
        raise OSError("the marker")

    with pytest.raises(OSError, match="the marker"):
        open_storage(settings, guards_of=failing)
    open_storage(settings).close()


def test_a_guard_that_is_added_while_others_are_asked_is_asked_too() -> None:
    clock, late = FakeClock(), Counting(0)

    class Slow(Counting):
        def floor(self, log: TopicLog) -> int:
            storage.add_guard(late)
            return log.durable_end

    with storage_of(clock) as storage:
        fill(storage)
        slow = Slow()
        storage.add_guard(slow)
        storage.maintain()
        assert storage.topic(TOPIC).log.first_offset == 0
        storage.remove_guard(slow)
        storage.maintain()
        assert late.asked
        assert storage.topic(TOPIC).log.first_offset == 0

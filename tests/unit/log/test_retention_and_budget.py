"""What may go, when, and what is refused before the disk is full."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

import frazil
from frazil.core.errors import OffsetOutOfRange
from frazil.core.settings import KIB, MIB, RetentionSettings, SyncMode
from frazil.log.retention.policy import removable
from frazil.log.storage import open_storage
from frazil.log.write.segment import Segment
from frazil.testing import FakeClock, FaultyDisk
from parts.moving import Floor

HOUR_US = 3_600_000_000


def segments(*rows: tuple[int, int, int]) -> list[Segment]:
    """Segments from (base, bytes, time of the newest row)."""
    return [Segment(base, Path(f"{base}"), size, size, sealed=True, last_time_us=time) for base, size, time in rows]


@pytest.mark.parametrize(
    ("retention", "now_us", "floor", "expected"),
    [
        (RetentionSettings(), 10**12, 30, []),
        (RetentionSettings(bytes=250), 0, 30, [0]),
        (RetentionSettings(bytes=1), 0, 30, [0, 10]),  # the last stays
        (RetentionSettings(bytes=1), 0, 15, [0]),  # the table holds only up to 15
        (RetentionSettings(bytes=1), 0, 0, []),
        (RetentionSettings(age_ms=1000), 2_000_000, 30, [0]),
        (RetentionSettings(age_ms=1000), 9_000_000, 30, [0, 10, 20]),
        (RetentionSettings(age_ms=1000), 9_000_000, 29, [0, 10]),
        (RetentionSettings(until_acked=True), 0, 25, [0, 10]),  # acknowledged up to 25
        (RetentionSettings(until_acked=True, age_ms=1000), 2_500_000, 25, [0]),  # acknowledged, and old enough
        (RetentionSettings(until_acked=True, age_ms=1000), 9_000_000, 15, [0]),  # old enough, and acknowledged
        (RetentionSettings(until_acked=True, bytes=250), 9_000_000, 25, [0]),
    ],
)
def test_only_whole_old_segments_below_the_floor_may_go(
    retention: RetentionSettings, now_us: int, floor: int, expected: list[int]
) -> None:
    log = segments((0, 100, 1_000_000), (10, 100, 2_000_000), (20, 100, 3_000_000))
    assert [segment.base for segment in removable(log, 30, retention, now_us, floor)] == expected


def test_by_size_the_oldest_segments_go_and_readers_are_told(tmp_path: Path) -> None:
    settings = frazil.Settings(
        data=tmp_path,
        wal=frazil.WalSettings(max_file_size=64 * KIB, cache_capacity=0, retention=RetentionSettings(bytes=200 * KIB)),
    )
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/a")
        for index in range(200):
            topic.publish(b"%d" % index + bytes(4 * KIB))
        old = topic.read()
        next(old)
        storage.maintain()
        stats = topic.stats()
        assert 0 < stats.first_offset < 200
        assert stats.bytes <= 200 * KIB
        assert storage.budget.used_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.wal"))
        with pytest.raises(OffsetOutOfRange) as caught:
            list(old)
        assert caught.value.first == stats.first_offset
        assert [message.offset for message in topic.read()] == list(range(stats.first_offset, 200))
    with frazil.open(settings) as storage:
        assert storage.topic("/default/a").stats().first_offset == stats.first_offset


def test_by_age_even_the_last_segment_goes_and_the_offset_goes_on(tmp_path: Path) -> None:
    clock = FakeClock()
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(retention=RetentionSettings(age_ms=1000)))
    with open_storage(settings, clock=clock) as storage:
        topic = storage.topic("/default/a")
        topic.publish_many([b"x"] * 7)
        clock.advance(2_000_000)
        storage.maintain()
        assert (topic.stats().first_offset, topic.stats().end, topic.stats().messages) == (7, 7, 0)
        storage.maintain()
        assert list(topic.read()) == []
    with open_storage(settings, clock=clock) as storage:
        topic = storage.topic("/default/a")
        assert topic.publish(b"y") == 7
        assert [(message.offset, message.payload) for message in topic.read()] == [(7, b"y")]


def test_nothing_goes_that_the_colder_tier_does_not_hold(tmp_path: Path) -> None:
    settings = frazil.Settings(
        data=tmp_path, wal=frazil.WalSettings(max_file_size=64 * KIB, retention=RetentionSettings(bytes=1))
    )
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/a")
        for _ in range(100):
            topic.publish(bytes(4 * KIB))
        floor = Floor()
        floor.ends[topic.log.log_id] = 40
        storage.add_guard(floor)
        storage.maintain()
        assert 20 < topic.stats().first_offset <= 40


@pytest.mark.parametrize("mode", list(SyncMode))
def test_by_age_the_last_segment_stays_while_it_has_rows_that_the_colder_tier_lacks(
    tmp_path: Path, mode: SyncMode
) -> None:
    """Rows that no sync has met yet are in it too: they are behind the durable end that the mover was told of."""
    clock = FakeClock()
    wal = frazil.WalSettings(sync_mode=mode, fsync_interval_ms=3_600_000, retention=RetentionSettings(age_ms=1000))
    settings = frazil.Settings(data=tmp_path, wal=wal)
    with open_storage(settings, clock=clock) as storage:
        topic = storage.topic("/default/a")
        topic.publish(b"moved")
        floor = Floor()
        floor.ends[topic.log.log_id] = topic.sync()
        topic.publish(b"not moved")
        storage.add_guard(floor)
        clock.advance(2_000_000)
        storage.maintain()
        floor.ends[topic.log.log_id] = topic.sync()
        assert [message.payload for message in topic.read()] == [b"moved", b"not moved"]
        storage.maintain()
        assert topic.stats().first_offset == topic.stats().end == 2
    with open_storage(settings, clock=clock) as storage:
        assert storage.topic("/default/a").publish(b"next") == 2


def test_a_segment_is_closed_at_its_age(tmp_path: Path) -> None:
    clock = FakeClock()
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(max_file_age_ms=HOUR_US // 1000))
    with open_storage(settings, clock=clock) as storage:
        topic = storage.topic("/default/a")
        topic.publish(b"a")
        clock.advance(HOUR_US - 1)
        topic.publish(b"b")
        clock.advance(1)
        topic.publish(b"c")
        assert [segment.base for segment in topic.log.segments] == [0, 2]
        clock.advance(HOUR_US)
        storage.maintain()
        assert topic.log.segments[-1].sealed
        topic.publish(b"d")
        assert [message.payload for message in topic.read()] == [b"a", b"b", b"c", b"d"]


def test_a_retention_of_its_own_outlives_a_restart(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        storage.create_topic("/default/a", retention=RetentionSettings(bytes=5))
        storage.topic("/default/b")
        storage.set_retention("/default/b", RetentionSettings(age_ms=7))
    with frazil.open(tmp_path) as storage:
        assert storage.topic("/default/a").log.retention == RetentionSettings(bytes=5)
        assert storage.topic("/default/b").log.retention == RetentionSettings(age_ms=7)


def test_past_the_disk_budget_publishing_is_refused_until_segments_are_removed(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(max_file_size=64 * KIB, disk_bytes_max=MIB))
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/a")
        acknowledged = []

        def fill() -> None:
            while len(acknowledged) < 10_000:
                acknowledged.append(topic.publish(bytes(4 * KIB)))

        with pytest.raises(frazil.DiskBudgetExceeded) as caught:
            fill()
        assert caught.value.limit_bytes == MIB
        assert 150 < len(acknowledged) < 256
        used = sum(path.stat().st_size for path in tmp_path.rglob("*.wal"))
        assert used == storage.budget.used_bytes <= MIB
        with pytest.raises(frazil.DiskBudgetExceeded):
            storage.topic("/default/other").publish(bytes(100 * KIB))
        storage.set_retention("/default/a", RetentionSettings(bytes=500 * KIB))
        storage.maintain()
        assert topic.publish(b"again") == len(acknowledged)
        assert storage.topic("/default/other").publish(bytes(100 * KIB)) == 0
    with frazil.open(settings) as storage:
        assert storage.topic("/default/a").stats().end == len(acknowledged) + 1


def test_a_full_queue_is_an_answer(tmp_path: Path) -> None:
    limits = {"message_bytes_max": 32 * KIB, "batch_bytes_max": 64 * KIB, "queue_bytes_max": 64 * KIB}
    with frazil.open(frazil.Settings(data=tmp_path, wal=frazil.WalSettings(**limits))) as storage:
        topic = storage.topic("/default/a")
        blocked = topic.log._io  # while it is held no commit goes on, so that the queue fills
        queued = 0

        def fill() -> None:
            nonlocal queued
            for _ in range(20):
                topic.begin_publish(bytes(10 * KIB), None, None, lambda part: None, None)
                queued += 1

        with blocked, pytest.raises(frazil.Overloaded) as caught:
            fill()
        assert caught.value.limit_bytes == 64 * KIB
        assert caught.value.retry_after_ms > 0
        assert queued >= 6
        assert len(list(topic.read(follow=True, end=queued))) == queued
        assert topic.publish(bytes(10 * KIB)) == queued


def test_a_topic_that_cannot_be_maintained_does_not_hold_up_the_others(caplog: pytest.LogCaptureFixture) -> None:
    disk = FaultyDisk()
    settings = frazil.Settings(
        data=Path("/data"), wal=frazil.WalSettings(max_file_size=64 * KIB, retention=RetentionSettings(bytes=1))
    )
    with open_storage(settings, disk=disk) as storage:
        topics = [storage.topic(f"/default/{name}") for name in "ab"]
        for topic in topics:
            for _ in range(40):
                topic.publish(bytes(4 * KIB))
        disk.fail("remove", errno.EIO, times=1)
        storage.maintain()
        assert "maintenance of /default/a failed" in caplog.text
        assert topics[1].stats().first_offset > 0
        storage.maintain()
        assert topics[0].stats().first_offset > 0


def test_a_removal_that_was_cut_short_is_finished_when_the_topic_is_opened(tmp_path: Path) -> None:
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(max_file_size=64 * KIB))
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/a")
        for _ in range(100):
            topic.publish(bytes(4 * KIB))
        oldest = topic.log.segments[0]
        kept = oldest.path.read_bytes()
        storage.set_retention("/default/a", RetentionSettings(bytes=200 * KIB))
        storage.maintain()
        first = topic.stats().first_offset
        assert first > 0
    oldest.path.write_bytes(kept)  # as if the power had gone before its name was durably removed
    with frazil.open(settings) as storage:
        topic = storage.topic("/default/a")
        assert topic.stats().first_offset == first
        assert [message.offset for message in topic.read()] == list(range(first, 100))
        assert not oldest.path.exists()
        assert storage.budget.used_bytes == sum(path.stat().st_size for path in tmp_path.rglob("*.wal"))


def test_by_age_old_segments_go_after_a_restart_too(tmp_path: Path) -> None:
    clock = FakeClock()
    settings = frazil.Settings(
        data=tmp_path, wal=frazil.WalSettings(max_file_size=64 * KIB, retention=RetentionSettings(age_ms=1000))
    )
    with open_storage(settings, clock=clock) as storage:
        topic = storage.topic("/default/a")
        for _ in range(40):
            topic.publish(bytes(4 * KIB))
        assert len(topic.log.segments) >= 3
        clock.advance(900_000)
        topic.publish(b"young")
    clock.advance(500_000)
    with open_storage(settings, clock=clock) as storage:
        topic = storage.topic("/default/a")
        storage.maintain()
        assert len(topic.log.segments) == 1
        assert topic.stats().end == 41

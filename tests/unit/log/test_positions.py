"""Starting by time: the first row appended at or after it."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

import frazil
from frazil.core.settings import KIB
from frazil.log.storage import open_storage
from frazil.testing import FakeClock

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


@pytest.mark.parametrize("reopened", [False, True])
@pytest.mark.parametrize("cache_bytes", [0, 10_000 * KIB])
def test_a_time_names_the_first_row_at_or_after_it(tmp_path: Path, cache_bytes: int, reopened: bool) -> None:
    clock = FakeClock(now_us=int(START.timestamp() * 1e6))
    settings = frazil.Settings(data=tmp_path, wal=frazil.WalSettings(max_file_size=64 * KIB, cache_bytes=cache_bytes))
    storage = open_storage(settings, clock=clock)
    topic = storage.topic("/default/times")
    times = []
    for index in range(120):
        times.append(EPOCH + timedelta(microseconds=clock.now_us()))
        topic.publish(b"%d" % index + bytes(3 * KIB))
        clock.advance(1_000_000 if index % 3 else 0)  # every third pair shares its time
    if reopened:
        storage.close()
        storage = open_storage(settings, clock=clock)
        topic = storage.topic("/default/times")
    with storage:
        assert topic.stats().segments > 5
        for asked in [START - timedelta(days=1), *times, *(time + timedelta(microseconds=1) for time in times)]:
            expected = next((index for index, time in enumerate(times) if time >= asked), 120)
            first = next(topic.read(asked), None)
            assert (first.offset if first else 120) == expected


def test_append_times_never_step_back_when_the_clock_does(tmp_path: Path) -> None:
    clock = FakeClock(now_us=1_000_000_000)
    with open_storage(tmp_path, clock=clock) as storage:
        topic = storage.topic("/default/times")
        topic.publish(b"a")
        clock.step_wall(-500_000_000)
        topic.publish(b"b")
    with open_storage(tmp_path, clock=clock) as storage:
        topic = storage.topic("/default/times")
        topic.publish(b"c")
        times = [message.append_time for message in topic.read()]
    assert times == sorted(times)
    assert len(set(times)) == 1


def test_a_naive_time_and_nonsense_are_refused(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        topic = storage.topic("/default/times")
        for start in (START.replace(tzinfo=None), "yesterday", 1.5, None, True):
            with pytest.raises(frazil.InvalidPosition):
                topic.read(start)  # type: ignore[arg-type]

"""`flush_interval_ms` counts from the age of a row, whoever moves it and since when."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import frazil
from frazil.core.settings import Settings, make_settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.store import TableStore
from frazil.log.info import LogInfo, LogList
from frazil.node.movers.log_source import OwnLogs
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.move.row_ages import LISTINGS_MAX, RowAges
from frazil.testing import FakeClock
from frazil.testing.jobs import InProcessJobs

TOPIC = "/shop/orders"
SECOND_US = 1_000_000
FLUSH_US = 60 * SECOND_US


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings({"data": tmp_path, "writer": {"flush_interval_ms": FLUSH_US // 1_000}})


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


MakeMover = Callable[[frazil.Storage], Mover]


@pytest.fixture
def mover_of(settings: Settings, clock: FakeClock) -> MakeMover:
    properties = catalog_properties(settings)

    def make(storage: frazil.Storage) -> Mover:
        tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
        return Mover(settings, OwnLogs(storage), tables, InProcessJobs(), clock, lambda _: None)

    return make


def test_rows_that_are_old_are_moved_by_the_first_tick_of_a_mover(
    settings: Settings, clock: FakeClock, mover_of: MakeMover
) -> None:
    with frazil.open(settings, clock=clock) as storage:
        storage.topic(TOPIC).publish("tea")
        clock.advance(FLUSH_US - 1)
        assert mover_of(storage).tick().rows == 0
        clock.advance(1)
        assert mover_of(storage).tick().rows == 1


def test_rows_are_moved_at_their_age_and_not_before(settings: Settings, clock: FakeClock, mover_of: MakeMover) -> None:
    with frazil.open(settings, clock=clock) as storage:
        topic, mover = storage.topic(TOPIC), mover_of(storage)
        topic.publish("tea")
        for expected in (0, 0, 1, 0):
            clock.advance(FLUSH_US // 3)
            assert mover.tick().rows == expected
        topic.publish("milk")
        moved_at = [at for at in range(1, 10) if not clock.advance(FLUSH_US // 6) and mover.tick().rows]
        assert moved_at == [6]


def test_no_row_is_read_by_a_mover_that_saw_the_log_before(settings: Settings, clock: FakeClock) -> None:
    reads: list[int] = []

    def read(_: LogInfo, offset: int) -> int:
        reads.append(offset)
        return clock.now_us() - 5

    with frazil.open(settings, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        topic.publish_many([b"tea"] * 10)
        logs, ages = LogList(storage), RowAges(clock, read)

        def since_us(offset: int) -> int:
            (info,) = logs.read()
            ages.listed([info])
            return ages.since_us(info, offset)

        first_us = clock.now_us()
        assert [since_us(3), since_us(3), since_us(3)] == [first_us - 5] * 3
        assert reads == [3], "read once, as long as it is the oldest"
        for _ in range(LISTINGS_MAX * 2):
            clock.advance(SECOND_US)
            topic.publish("milk")
            since_us(3)
        assert reads == [3]
        assert since_us(10) == first_us, "all from 10 on came after the first look"
        assert reads == [3]


def test_a_clock_that_differs_delays_nothing(settings: Settings, clock: FakeClock) -> None:
    with frazil.open(settings, clock=clock) as storage:
        storage.topic(TOPIC).publish("tea")
        (info,) = LogList(storage).read()
    for told_us in (clock.now_us() + 3_600 * SECOND_US, None):
        ages = RowAges(clock, lambda *_, told_us=told_us: told_us)
        ages.listed([info])
        seen_us = clock.now_us()
        clock.advance(SECOND_US)
        assert ages.since_us(info, 0) == seen_us


def test_a_row_that_can_not_be_read_counts_from_when_it_was_seen(
    settings: Settings, clock: FakeClock, mover_of: MakeMover
) -> None:
    with frazil.open(settings, clock=clock) as storage:
        topic = storage.topic(TOPIC)
        topic.publish("tea")
        clock.advance(FLUSH_US * 2)
        mover = mover_of(storage)
        (segment,) = topic.log.segments
        away = segment.path.with_name("away")
        os.rename(segment.path, away)
        assert mover.tick().rows == 0
        os.rename(away, segment.path)
        clock.advance(FLUSH_US)
        assert mover.tick().rows == 1

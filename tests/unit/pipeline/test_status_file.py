"""What the mover tells: whose word it is, whether it still lives, and what an owner does with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.errors import AnotherLeads, OwnerUnreachable
from frazil.pipeline.lease import this_host
from frazil.pipeline.mover import TickReport, TopicReport
from frazil.pipeline.status_file import QUIET_WRITE_US, SILENCE_US_MAX, StatusFile, read_status, write_status
from frazil.testing import FakeClock
from frazil.topics.floor import TableFloor

NOBODY = 2**22 + 1
RUNNING = {"state": "running", "topics": {}}


@pytest.fixture
def settings(tmp_path: Path) -> frazil.Settings:
    return frazil.Settings(data=tmp_path)


def state(settings: frazil.Settings, clock: FakeClock) -> str:
    return str((read_status(settings, clock) or {})["state"])


def test_a_mover_of_this_host_is_gone_when_its_process_is(settings: frazil.Settings) -> None:
    clock = FakeClock()
    write_status(settings, clock, this_host(), os.getpid(), RUNNING)
    clock.advance(SILENCE_US_MAX * 10)
    assert state(settings, clock) == "running"
    write_status(settings, clock, this_host(), NOBODY, RUNNING)
    assert state(settings, clock) == "gone"


def test_a_mover_of_another_host_is_gone_when_it_is_silent_for_too_long(settings: frazil.Settings) -> None:
    clock = FakeClock()
    write_status(settings, clock, "elsewhere", NOBODY, RUNNING)
    clock.advance(SILENCE_US_MAX)
    assert state(settings, clock) == "running"
    clock.advance(1)
    assert state(settings, clock) == "gone"
    write_status(settings, clock, "elsewhere", NOBODY, {**RUNNING, "state": "stopped"})
    clock.advance(SILENCE_US_MAX * 2)
    assert state(settings, clock) == "stopped"


def test_what_could_not_be_told_is_told_with_the_next() -> None:
    clock = FakeClock()
    told: list[dict[str, Any]] = []
    fails = [OwnerUnreachable("grpc://nowhere", "made by the test"), AnotherLeads("elsewhere", 7)]

    def tell(value: dict[str, Any]) -> None:
        if fails:
            raise fails.pop()
        told.append(value)

    status = StatusFile(tell, clock)
    status.stopped()
    assert len(fails) == 2, "one that never told anything has nothing to say"
    report = TickReport(7, 1, {"/a/b": TopicReport("/a/b", "id", "a.b", 7, 7, 0.0)})
    status.starting()
    status.ticked(report)
    assert not told
    status.again()
    assert [(one["state"], one["rows"]) for one in told] == [("running", 7)]
    status.again()
    assert len(told) == 1, "the same is not told twice in a moment"
    clock.advance(QUIET_WRITE_US)
    status.again()
    assert len(told) == 2
    status.stopped()
    assert told[-1]["state"] == "stopped"
    assert told[-1]["topics"]["/a/b"]["table_end"] == 7


def test_a_mover_never_heard_of_again_leaves_a_floor_and_a_folder_without_one_has_none(tmp_path: Path) -> None:
    wal = frazil.WalSettings(max_file_size=64 * 1024, retention=frazil.RetentionSettings(bytes=1))
    settings = frazil.Settings(data=tmp_path, wal=wal)
    clock = FakeClock()
    with frazil.open(settings) as storage:
        floor = TableFloor(settings, always=False)
        topic = storage.topic("/default/orders")
        assert floor(topic.log) is None
        assert TableFloor(settings)(topic.log) == 0
        write_status(settings, clock, "elsewhere", NOBODY, {"state": "starting", "topics": {}})
        assert floor(topic.log) == 0
        told = {"log_id": topic.log.log_id, "table_end": 30}
        write_status(settings, clock, "elsewhere", NOBODY, {"state": "running", "topics": {topic.name: told}})
        storage.floor_of = floor
        clock.advance(SILENCE_US_MAX * 100)
        for _ in range(60):
            topic.publish(bytes(4 * 1024))
        storage.maintain()
        assert 0 < topic.stats().first_offset <= 30

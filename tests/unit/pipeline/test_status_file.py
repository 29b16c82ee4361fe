"""What the mover tells: whose word it is, whether it still lives, and what an owner does with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

import frazil
from frazil.core.errors import AnotherLeads, OwnerUnreachable
from frazil.node.movers.lease import this_host
from frazil.node.movers.status_file import (
    QUIET_WRITE_US,
    SILENCE_US_MAX,
    StatusFile,
    read_status,
    write_status,
)
from frazil.node.movers.table_progress import known_end
from frazil.node.movers.tick_report import TickReport, TopicReport
from frazil.testing import FakeClock

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


def _report(end: int, error: str | None = None, log_id: str = "id") -> dict[str, Any]:
    return {"state": "running", "topics": {"/a/b": {"log_id": log_id, "table_end": end, "error": error}}}


def test_what_was_known_of_tables_outlives_a_mover_that_waits(settings: frazil.Settings) -> None:
    clock = FakeClock()

    def tell(value: dict[str, Any]) -> tuple[int, int] | None:
        clock.advance(1_000_000)
        write_status(settings, clock, this_host(), os.getpid(), value)
        return known_end(read_status(settings, clock) or {}, "/a/b", "id")

    assert tell({"state": "starting", "topics": {}}) is None
    known = tell(_report(7))
    assert known == (7, clock.now_us())
    for value in ({"state": "stopped", "topics": {}}, {"state": "waiting", "error": "no catalog", "topics": {}}):
        assert tell(value) == known
    assert tell(_report(0, "no catalog")) == known, "a report with an error knows nothing of the table"
    assert tell(_report(9)) == (9, clock.now_us())
    assert "known" not in (read_status(settings, clock) or {})
    assert tell(_report(0, "another log", "other")) is None


def test_the_error_that_ended_a_mover_stays_until_the_next_has_ticked(settings: frazil.Settings) -> None:
    clock = FakeClock()
    write_status(settings, clock, this_host(), NOBODY, {"state": "stopped", "error": "no Spark", "topics": {}})
    write_status(settings, clock, this_host(), os.getpid(), {"state": "starting", "error": None, "topics": {}})
    assert (read_status(settings, clock) or {})["error"] == "no Spark"
    write_status(settings, clock, this_host(), os.getpid(), {"state": "running", "error": None, "topics": {}})
    assert (read_status(settings, clock) or {})["error"] is None

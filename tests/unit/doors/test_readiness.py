"""Why a server is not ready: the reason names the topic, its age, its objective, and what to look at."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from frazil.core.settings import make_settings
from frazil.log.storage import open_storage
from frazil.node.health.readiness import MissedObjectives, MoverProblems, Readiness
from frazil.node.movers.lease import this_host
from frazil.node.movers.status_file import write_status
from frazil.node.movers.table_progress import StatusReader
from frazil.node.topics.freshness import Freshness
from frazil.node.topics.startup import Opening
from frazil.testing import FakeClock

TOPIC = "/shop/orders"


@pytest.mark.parametrize(
    ("told", "why"),
    [
        (None, "no mover has ever run here"),
        ({"state": "running"}, "the mover is running"),
        ({"state": "stopped"}, "the mover is stopped"),
        ({"state": "running", "error": "no catalog"}, "the mover's last error is: no catalog"),
        (
            {"state": "running", "topics": {TOPIC: {"log_id": "", "error": "no store"}}},
            "the mover's last error is: no store",
        ),
    ],
)
def test_the_reason_says_what_is_known_of_the_mover(tmp_path: Path, told: dict[str, Any] | None, why: str) -> None:
    settings = make_settings({"data": tmp_path, "topics": {"/shop/*": {"freshness_objective_ms": 60_000}}})
    clock = FakeClock()
    with open_storage(settings, clock=clock) as storage:
        storage.topic(TOPIC).publish("x")
        opening = Opening(storage)
        opening.start()
        opening.wait()
        status = StatusReader(settings)
        missed = MissedObjectives(Freshness(storage, status, clock, always=True), status, clock)
        readiness = Readiness(opening, missed)
        clock.advance(60_000_000)
        assert readiness.ready
        clock.advance(15_000_000)
        if told is not None:
            write_status(settings, clock, this_host(), os.getpid(), told)
        (reason,) = readiness.problems()
        assert not readiness.ready
    assert (reason["topic"], reason["freshness_ms"], reason["objective_ms"]) == (TOPIC, 75_000, 60_000)
    assert reason["message"] == (
        f"{TOPIC}: rows that are not in its table: 1, the oldest for 75.0 s; the objective is 60 s; {why};"
        " see frazil pipeline status"
    )


@pytest.mark.parametrize(
    ("told", "error", "said"),
    [
        ({"state": "waiting", "error": "catalog.uri: refused"}, "lake_unavailable", "catalog.uri: refused"),
        ({"state": "stopped", "error": "no Spark"}, "mover_failed", "no Spark"),
        ({"state": "running", "error": "no owner"}, "mover_failed", "no owner"),
        ({"state": "running", "topics": {TOPIC: {"log_id": "", "error": "no store"}}}, "tables_failing", "no store"),
        ({"state": "running", "topics": {TOPIC: {"log_id": "", "error": None}}}, None, None),
    ],
)
def test_what_keeps_rows_from_tables_is_named_and_leaves_it_ready(
    tmp_path: Path, told: dict[str, Any], error: str | None, said: str | None
) -> None:
    settings, clock = make_settings({"data": tmp_path}), FakeClock()
    write_status(settings, clock, this_host(), os.getpid(), told)
    with open_storage(settings, clock=clock) as storage:
        opening = Opening(storage)
        readiness = Readiness(opening, warnings=MoverProblems(StatusReader(settings), clock, has_mover=True))
        opening.start()
        opening.stop()
        found = readiness.warnings()
        assert [one["error"] for one in found] == ([] if error is None else [error])
        assert error is None or str(said) in found[0]["message"]
        assert not readiness.problems()


def test_a_mover_that_is_gone_or_can_not_be_started_is_named(tmp_path: Path) -> None:
    settings, clock = make_settings({"data": tmp_path}), FakeClock()
    told = StatusReader(settings)
    assert MoverProblems(told, clock, has_mover=True)() == []
    missing = MoverProblems(told, clock, has_mover=False, missing="there is no Java")()
    assert [one["error"] for one in missing] == ["mover_missing"]
    write_status(settings, clock, this_host(), 2**22 + 1, {"state": "running", "error": None})
    assert [one["error"] for one in MoverProblems(told, clock, has_mover=True)()] == ["mover_gone"]
    assert MoverProblems(told, clock, has_mover=False)() == []

"""When the mover has its tables kept, by whom, and what it tells of it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from frazil.core.clock import SystemClock
from frazil.pipeline.maintenance.schedule import Schedule

SECOND = 1
KEPT = (
    '[{"table": "a.b", "files_before": 3, "files_after": 1, "snapshots_removed": 0, "orphans_removed": 0, '
    '"error": null}, '
    '{"table": "a.c", "files_before": 0, "files_after": 0, "snapshots_removed": 0, "orphans_removed": 0, '
    '"error": ERROR}]'
)

Start = Callable[..., "Told"]


class Told(list[dict[str, Any]]):
    """What the schedule says, in its order."""

    def __init__(self) -> None:
        super().__init__()
        self._came = threading.Condition()

    def tell(self, value: dict[str, Any]) -> None:
        with self._came:
            self.append(value)
            self._came.notify_all()

    def wait_for(self, state: str, times: int = 1) -> dict[str, Any]:
        with self._came:
            assert self._came.wait_for(lambda: sum(one["state"] == state for one in self) >= times, 30), list(self)
            return [one for one in self if one["state"] == state][times - 1]


@pytest.fixture
def start() -> Iterator[Start]:
    schedules: list[Schedule] = []

    def started(program: str, leads: Callable[[], bool] = lambda: True) -> Told:
        told = Told()
        schedules.append(Schedule([sys.executable, "-c", program], SECOND, SystemClock(), leads, told.tell))
        schedules[-1].start()
        return told

    yield started
    for schedule in schedules:
        schedule.close()


def test_what_was_done_is_told(start: Start) -> None:
    told = start(f"print('''{KEPT.replace('ERROR', 'null')}''')")
    done = told.wait_for("done")
    assert (done["tables"], done["error"]) == (1, None)
    assert [one["state"] for one in told][:3] == ["waiting", "running", "done"]
    assert told[0]["time_us"] > 0


def test_a_table_that_was_refused_is_told_and_the_others_were_kept(start: Start) -> None:
    error = '"a.c: it was rolled back"'
    failed = start(f"print('''{KEPT.replace('ERROR', error)}'''); exit(1)").wait_for("failed")
    assert (failed["tables"], failed["error"]) == (1, "a.c: it was rolled back")


def test_an_error_of_ours_is_repeated(start: Start) -> None:
    program = """import sys; print('noise\\n{"error": "spark", "message": "no Java here"}', file=sys.stderr); exit(1)"""
    assert start(program).wait_for("failed")["error"] == "no Java here"


@pytest.mark.parametrize("program", ["import os; os.kill(os.getpid(), 9)", "exit('s3cret')", "print('{}')"])
def test_what_others_say_is_not_repeated(start: Start, program: str) -> None:
    assert (
        start(program).wait_for("failed")["error"].startswith("it ended without a report; run `frazil table maintain`")
    )


def test_orphans_are_looked_for_once_a_day(start: Start, tmp_path: Path) -> None:
    """A round that failed has not looked for them."""
    seen = tmp_path / "seen"
    program = f"import sys; f = open({str(seen)!r}, 'a'); print(sys.argv[1:], file=f); n = f.tell()\n"
    told = start(program + "print('[]') if n > 5 else exit(1)")
    told.wait_for("done", times=2)
    assert seen.read_text().splitlines()[:3] == ["[]", "[]", "['--no-orphans']"]


def test_only_the_leader_keeps_the_tables(start: Start) -> None:
    asked = threading.Event()

    def leads() -> bool:
        leads_now = asked.is_set()
        asked.set()
        return leads_now

    told = start("print('[]')", leads)
    told.wait_for("done")
    assert asked.is_set()
    assert [one["state"] for one in told][:3] == ["waiting", "running", "done"], "not at the first time"


def test_it_ends_with_us(tmp_path: Path) -> None:
    told = Told()
    up = tmp_path / "up"
    program = f"import os, sys; print(os.getpid(), file=open({str(up)!r}, 'w')); sys.stdin.read()"
    schedule = Schedule([sys.executable, "-c", program], SECOND, SystemClock(), lambda: True, told.tell)
    schedule.start()
    told.wait_for("running")
    while not (up.exists() and up.read_text()):
        threading.Event().wait(0.01)
    schedule.close()
    assert not psutil.pid_exists(int(up.read_text()))
    assert [one["state"] for one in told] == ["waiting", "running", "waiting"], "what was broken off did not fail"


def test_it_uses_no_jvm_of_ours(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    monkeypatch.setenv("SPARK_REMOTE", "sc://nowhere")
    monkeypatch.setenv("FRAZIL_DATA", "here")
    program = "import os; print('[]' if os.environ.get('FRAZIL_DATA') else '', *os.environ.keys() & NOT_OURS)"
    program = program.replace("NOT_OURS", "{'PYSPARK_GATEWAY_PORT', 'SPARK_REMOTE'}")
    assert start(program).wait_for("done")["error"] is None

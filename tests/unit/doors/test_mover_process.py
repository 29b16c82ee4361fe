"""The mover's process: started again with growing patience, and never left behind."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import psutil
import pytest

from frazil.core.clock import SystemClock
from frazil.serve import mover_process
from frazil.serve.mover_process import MoverProcess, failures_in_a_row


def test_the_delay_doubles_up_to_a_minute() -> None:
    delays = [mover_process.delay_seconds(failures) for failures in range(1, 9)]
    assert delays == [1, 2, 4, 8, 16, 32, 60, 60]


def test_a_good_life_makes_the_next_delay_short_again() -> None:
    assert failures_in_a_row(0, 0.5) == 1
    assert failures_in_a_row(6, 60) == 1
    assert failures_in_a_row(6, 59) == 7


def test_what_ignores_the_signal_is_killed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mover_process, "STOP_SECONDS_MAX", 0.2)
    ready = tmp_path / "ready"
    code = (
        "import pathlib, signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
        f"pathlib.Path({str(ready)!r}).touch(); time.sleep(600)"
    )
    mover = MoverProcess([sys.executable, "-c", code], SystemClock())
    assert not mover.up
    others = psutil.Process().children()  # the servers that other tests of this run have started
    mover.start()
    waiting = threading.Event()
    for _ in range(1_000):
        if ready.exists():
            break
        waiting.wait(0.01)
    assert mover.up
    started = [child for child in psutil.Process().children() if child not in others]
    assert started
    mover.stop()
    assert not mover.up
    assert not [child for child in started if child.is_running()]


def test_stopping_one_that_was_never_started_does_nothing() -> None:
    MoverProcess([sys.executable, "-c", ""], SystemClock()).stop()

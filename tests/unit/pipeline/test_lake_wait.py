"""A mover whose catalog is away at start: it waits, says why, and goes on by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from frazil.core.errors import InvalidSettings, LakeUnavailable
from frazil.node.movers.status_file import StatusFile
from frazil.pipeline.move import lake_wait
from frazil.pipeline.move.lake_wait import wait_for_lake
from frazil.testing import FakeClock


class Pauses(threading.Event):
    """An event whose waits take no time, but on the clock."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock
        self.seconds: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.seconds.append(timeout)
        self._clock.advance(int(timeout * 1_000_000))
        return self.is_set()


class Lake:
    def __init__(self, *errors: Exception) -> None:
        self._errors = list(errors)

    def check(self) -> None:
        if self._errors:
            raise self._errors.pop(0)


def away(why: str) -> LakeUnavailable:
    return LakeUnavailable("catalog.uri", why, "start the catalog")


def waited(check: Callable[[], None], *, leads: bool = True) -> tuple[list[dict[str, Any]], list[float]]:
    clock, told = FakeClock(), []
    stop = Pauses(clock)
    wait_for_lake(check, StatusFile(told.append, clock), lambda: leads, stop, clock)
    return told, stop.seconds


def test_it_tells_why_since_when_and_when_it_tries_again() -> None:
    told, pauses = waited(Lake(*[away("refused")] * 6, away("no such host")).check)
    assert pauses == [1, 2, 4, 8, 16, 30, 30]
    waiting = [one for one in told if one["state"] == "waiting"]
    assert {one["since_us"] for one in waiting} == {waiting[0]["since_us"]}
    first = waiting[0]
    assert first["next_try_us"] - first["since_us"] == 1_000_000
    assert "refused" in first["error"]
    assert "no such host" in waiting[-1]["error"]
    assert told[-1]["state"] == "starting"
    assert told[-1]["error"] is None


def test_one_that_stands_by_says_nothing() -> None:
    assert waited(Lake(away("refused")).check, leads=False) == ([], [1])


def test_a_wrong_setting_is_not_waited_for() -> None:
    with pytest.raises(InvalidSettings):
        waited(Lake(InvalidSettings("catalog.uri: no address")).check)


def test_one_that_hangs_is_told_of_before_it_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake_wait, "SILENCE_SECONDS_MAX", 0.01)
    clock, answers, told = FakeClock(), threading.Event(), []

    def tell(value: dict[str, Any]) -> None:
        told.append(value)
        answers.set()

    wait_for_lake(lambda: answers.wait(30) and None, StatusFile(tell, clock), lambda: True, threading.Event(), clock)
    assert "no answer" in told[0]["error"]
    assert told[-1]["state"] == "starting"


def test_a_stop_ends_it() -> None:
    clock, told = FakeClock(), []
    stop = threading.Event()

    def tell(value: dict[str, Any]) -> None:
        told.append(value)
        stop.set()

    wait_for_lake(Lake(*[away("refused")] * 9).check, StatusFile(tell, clock), lambda: True, stop, clock)
    assert [one["state"] for one in told] == ["waiting"]

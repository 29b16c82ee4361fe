"""How the mover stands, told in a file after each tick: for `frazil pipeline status` and `frazil doctor`."""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.core.clock import Clock
from frazil.core.json_file import read_json, write_json
from frazil.core.settings import Settings

if TYPE_CHECKING:  # the mover imports Spark, which takes a second; a look at the file needs none of it
    from frazil.pipeline.mover import TickReport

STATUS_FILE = "~pipeline.json"
QUIET_WRITE_US = 5_000_000
"""A tick that changed nothing is told only now and then: there are several a second."""


class StatusFile:
    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._path = status_path(settings)
        self._clock = clock
        self._rows = 0
        self._commits = 0
        self._errors: dict[str, dict[str, Any]] = {}
        self._told: dict[str, Any] = {}
        self._told_us = 0

    def starting(self) -> None:
        self._tell({"state": "starting", "rows": 0, "commits": 0, "error": None, "topics": {}})

    def ticked(self, report: TickReport) -> None:
        self._rows += report.rows
        self._commits += report.commits
        now_us = self._clock.now_us()
        topics = {}
        for name, topic in report.topics.items():
            if topic.error is not None and self._errors.get(name, {}).get("message") != topic.error:
                self._errors[name] = {"message": topic.error, "time_us": now_us}
            topics[name] = {**asdict(topic), "lag_rows": topic.lag_rows, "last_error": self._errors.get(name)}
        self._tell({"state": "running", "rows": self._rows, "commits": self._commits, "error": None, "topics": topics})

    def failed(self, message: str) -> None:
        """A tick that came to nothing: the topics stand as they stood."""
        self._tell({**self._told, "state": "running", "error": message})

    def stopped(self, error: str | None = None) -> None:
        self._tell({**self._told, "state": "stopped", "error": error})

    def _tell(self, value: dict[str, Any]) -> None:
        now_us = self._clock.monotonic_us()
        if value == self._told and now_us - self._told_us < QUIET_WRITE_US:
            return
        self._told, self._told_us = value, now_us
        write_json(self._path, {"pid": os.getpid(), "time_us": self._clock.now_us(), **value})


def status_path(settings: Settings) -> Path:
    assert settings.data is not None
    return settings.data / STATUS_FILE


def read_status(settings: Settings) -> dict[str, Any] | None:
    """What the last mover told; `state` is `gone` if it ended without saying so."""
    told = read_json(status_path(settings))
    if told is not None and told.get("state") != "stopped" and not _lives(told.get("pid")):
        told["state"] = "gone"
    return told


def _lives(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""How the mover stands, told after each tick: for `frazil pipeline status`, `frazil doctor` and metrics.

It is a file in the data folder, which the folder's owner writes: itself, or for a mover that tells it by Flight.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError
from frazil.core.json_file import read_json, write_json
from frazil.core.settings import Settings
from frazil.pipeline.lease import lives, this_host
from frazil.topics.floor import status_path

if TYPE_CHECKING:  # the mover imports Spark, which takes a second; a look at the file needs none of it
    from frazil.pipeline.tick_report import TickReport

QUIET_WRITE_US = 5_000_000
"""A tick that changed nothing is told only now and then: there are several a second."""
SILENCE_US_MAX = 60_000_000
"""A mover of another host that was not heard of for so long is taken for gone."""

LIVE_STATES = ("starting", "waiting", "running")
"""`waiting`: for the catalog or the store, with the reason."""

_log = logging.getLogger("frazil.pipeline")


class StatusFile:
    """What is told; `tell` brings it to the file. What could not be told is told with the next."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], clock: Clock) -> None:
        self._to_file = tell
        self._clock = clock
        self._guard = threading.Lock()
        self._rows = 0
        self._commits = 0
        self._failures = 0
        self._moved: dict[str, dict[str, Any]] = {}
        self._errors: dict[str, dict[str, Any]] = {}
        self._value: dict[str, Any] = {}
        self._maintenance: dict[str, Any] | None = None
        self._told: dict[str, Any] = {}
        self._told_us = 0

    def starting(self) -> None:
        self._tell({"state": "starting", **self._counted(), "error": None, "topics": {}})

    def waiting(self, error: str, since_us: int, next_try_us: int) -> None:
        """The catalog or the store is away: why, since when, and when it is asked again."""
        self._failures += 1
        times = {"since_us": since_us, "next_try_us": next_try_us}
        self._tell({"state": "waiting", **self._counted(), "error": error, **times, "topics": {}})

    def ticked(self, report: TickReport) -> None:
        self._rows += report.rows
        self._commits += report.commits
        self._failures += report.failures
        now_us = self._clock.now_us()
        topics = {}
        for name, topic in report.topics.items():
            if topic.error is not None and self._errors.get(name, {}).get("message") != topic.error:
                self._errors[name] = {"message": topic.error, "time_us": now_us}
            told = {**asdict(topic), "lag_rows": topic.lag_rows, "last_error": self._errors.get(name)}
            if topic.moved is not None:
                self._moved[name] = told["moved"]
            topics[name] = {**told, "moved": self._moved.get(name)}
        self._tell({"state": "running", **self._counted(), "error": None, "topics": topics})

    def maintained(self, told: dict[str, Any]) -> None:
        """How the maintenance of tables stands; whoever stands by has nothing to say."""
        self._maintenance = told
        self.again()

    def failed(self, message: str) -> None:
        """A tick that came to nothing: the topics stand as they stood."""
        self._failures += 1
        self._tell({**self._value, **self._counted(), "state": "running", "error": message})

    def stopped(self, error: str | None = None) -> None:
        """Whoever stood by all the time has nothing to say."""
        if self._value:
            self._tell({**self._value, "state": "stopped", "error": error})

    def again(self) -> None:
        """The same once more, for a job that takes long: whoever says nothing is taken for gone."""
        if self._value:
            self._tell(self._value)

    def _counted(self) -> dict[str, int]:
        """Since this mover began; one that takes over goes on with its own."""
        return {"rows": self._rows, "commits": self._commits, "failures": self._failures}

    def _tell(self, value: dict[str, Any]) -> None:
        with self._guard:
            self._value = value = {**value, "maintenance": self._maintenance}
            now_us = self._clock.monotonic_us()
            if value == self._told and now_us - self._told_us < QUIET_WRITE_US:
                return
            try:
                self._to_file(value)
            except FrazilError as error:
                _log.debug("could not tell how the mover stands: %s", error)
                return
            self._told, self._told_us = value, now_us


def write_status(settings: Settings, clock: Clock, host: str, pid: int, value: dict[str, Any]) -> None:
    """The time is that of the owner's clock, whoever tells.

    A mover that starts or waits knows no table yet: what the last report knew of them is kept as `known`, to show, and
    the error that ended another process stays until this one has ticked.
    """
    topics = value.get("topics") or {}
    more: dict[str, Any] = {}
    if not topics or any(topic.get("error") is not None for topic in topics.values()):
        before = read_json(status_path(settings)) or {}
        more["known"] = last_known(before, topics)
        if value["state"] == "starting" and value.get("error") is None and before.get("pid") != pid:
            more["error"] = before.get("error")
    write_json(status_path(settings), {"pid": pid, "host": host, "time_us": clock.now_us(), **value, **more})


def last_known(before: Mapping[str, Any], topics: Mapping[str, Any]) -> dict[str, Any]:
    """The table ends that a report lacks, as the last one before it gave them, with the time of that."""
    found = dict(before.get("known") or {})
    for name, topic in (before.get("topics") or {}).items():
        if topic.get("error") is None:
            found[name] = {
                "log_id": topic.get("log_id"),
                "table_end": topic.get("table_end"),
                "time_us": before.get("time_us"),
            }
    if not topics:
        return found
    return {
        name: found[name]
        for name, topic in topics.items()
        if topic.get("error") is not None and found.get(name, {}).get("log_id") == topic.get("log_id")
    }


def read_status(settings: Settings, clock: Clock) -> dict[str, Any] | None:
    """What the last mover told; `state` is `gone` if it ended without saying so."""
    told = read_json(status_path(settings))
    return None if told is None else {**told, "state": mover_state(told, clock)}


def mover_state(told: Mapping[str, Any], clock: Clock) -> str:
    """As it was told, but `gone` if the mover ended without saying so."""
    state = str(told.get("state"))
    return "gone" if state != "stopped" and not _is_there(told, clock.now_us()) else state


def _is_there(told: Mapping[str, Any], now_us: int) -> bool:
    """A process of this host is asked for; one of another host is judged by when it last told."""
    pid, host, time_us = told.get("pid"), told.get("host"), told.get("time_us")
    if host is None or host == this_host():
        return isinstance(pid, int) and lives(pid)
    return isinstance(time_us, int) and now_us - time_us <= SILENCE_US_MAX

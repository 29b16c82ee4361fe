"""The mover's status, reported after each tick, for `frazil pipeline status`, `frazil doctor` and metrics.

It is a file in the data folder, which the folder's owner writes for other processes: see `last_report`, or
`write_status` where the mover is the owner.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from frazil.core.clock import Clock
from frazil.core.disk.json_file import read_json, write_json
from frazil.core.errors import FrazilError
from frazil.core.process.identity import lives
from frazil.core.settings import Settings
from frazil.node.movers.lease import this_host
from frazil.node.movers.table_progress import status_path

if TYPE_CHECKING:  # importing the mover imports Spark, which takes a second; reading the file does not need it
    from frazil.node.movers.tick_report import TickReport

QUIET_WRITE_US = 5_000_000
"""A tick without changes is reported only occasionally: there are several a second."""
SILENCE_US_MAX = 60_000_000
"""A mover of another host without a report for this long counts as gone."""

LIVE_STATES = ("starting", "waiting", "running")
"""`waiting`: for the catalog or the store, with the reason."""

_log = logging.getLogger("frazil.pipeline")


class StatusFile:
    """The status; `tell` writes it to the file. After a failure, it is written with the next report."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], clock: Clock) -> None:
        self._to_file = tell
        self._clock = clock
        self._guard = threading.Lock()
        self._rows = 0
        self._commits = 0
        self._failures = 0
        self._undecoded: dict[str, int] = {}
        self._moved: dict[str, dict[str, Any]] = {}
        self._errors: dict[str, dict[str, Any]] = {}
        self._value: dict[str, Any] = {}
        self._maintenance: dict[str, Any] | None = None
        self._reported: dict[str, Any] = {}
        self._reported_us = 0

    def starting(self) -> None:
        self._tell({"state": "starting", **self._counted(), "error": None, "topics": {}})

    def waiting(self, error: str, since_us: int, next_try_us: int) -> None:
        """The catalog or the store is unavailable: the reason, since when, and when it is retried."""
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
            status = {**asdict(topic), "lag_rows": topic.lag_rows, "last_error": self._errors.get(name)}
            if name in report.undecoded:
                self._undecoded[name] = self._undecoded.get(name, 0) + report.undecoded[name]
            if name in self._undecoded:
                status["undecoded"] = self._undecoded[name]
            if topic.moved is not None:
                self._moved[name] = status["moved"]
            topics[name] = {**status, "moved": self._moved.get(name)}
        self._tell({"state": "running", **self._counted(), "error": None, "topics": topics})

    def maintained(self, status: dict[str, Any]) -> None:
        """Record the state of table maintenance; a standby mover reports nothing."""
        self._maintenance = status
        self.again()

    def failed(self, message: str) -> None:
        """Record a failed tick: the topics are unchanged."""
        self._failures += 1
        self._tell({**self._value, **self._counted(), "state": "running", "error": message})

    def stopped(self, error: str | None = None) -> None:
        """A mover that was only on standby reports nothing."""
        if self._value:
            self._tell({**self._value, "state": "stopped", "error": error})

    def again(self) -> None:
        """Repeat the report during a long job: a silent mover counts as gone."""
        if self._value:
            self._tell(self._value)

    def _counted(self) -> dict[str, int]:
        """Counters since this mover started; a mover that takes over continues its own."""
        return {"rows": self._rows, "commits": self._commits, "failures": self._failures}

    def _tell(self, value: dict[str, Any]) -> None:
        with self._guard:
            self._value = value = {**value, "maintenance": self._maintenance}
            now_us = self._clock.monotonic_us()
            if value == self._reported and now_us - self._reported_us < QUIET_WRITE_US:
                return
            try:
                self._to_file(value)
            except FrazilError as error:
                _log.debug("could not report the mover's status: %s", error)
                return
            self._reported, self._reported_us = value, now_us


def write_status(settings: Settings, clock: Clock, host: str, pid: int, value: dict[str, Any]) -> None:
    """Write the status file, for a mover that owns the folder itself."""
    path = status_path(settings)
    write_json(path, next_status(read_json(path) or {}, clock, host, pid, value))


def next_status(before: Mapping[str, Any], clock: Clock, host: str, pid: int, value: dict[str, Any]) -> dict[str, Any]:
    """Merge a report with the previous one. The time is that of the owner's clock, for every mover.

    A mover that starts or waits knows no table yet: the tables of the last report are kept as `known`, for display, and
    the error that ended another process stays until this one has ticked.
    """
    topics = value.get("topics") or {}
    more: dict[str, Any] = {}
    if not topics or any(topic.get("error") is not None for topic in topics.values()):
        more["known"] = last_known(before, topics)
        if value["state"] == "starting" and value.get("error") is None and before.get("pid") != pid:
            more["error"] = before.get("error")
    return {"pid": pid, "host": host, "time_us": clock.now_us(), **value, **more}


def last_known(before: Mapping[str, Any], topics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the table ends that a report lacks, from the previous report, with its time."""
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
    """Return the last report; `state` is `gone` if the mover ended without a final one. Raises `NewerFormat`."""
    report = read_json(status_path(settings), refuse_newer=True)
    return None if report is None else {**report, "state": mover_state(report, clock)}


def mover_state(report: Mapping[str, Any], clock: Clock) -> str:
    """Return the reported state, but `gone` if the mover ended without a final report."""
    state = str(report.get("state"))
    return "gone" if state != "stopped" and not _is_there(report, clock.now_us()) else state


def _is_there(report: Mapping[str, Any], now_us: int) -> bool:
    """Check a process of this host directly; one of another host by the time of its last report."""
    pid, host, time_us = report.get("pid"), report.get("host"), report.get("time_us")
    if host is None or host == this_host():
        return isinstance(pid, int) and lives(pid)
    return isinstance(time_us, int) and now_us - time_us <= SILENCE_US_MAX

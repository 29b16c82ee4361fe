"""How the mover stands, told after each tick: for `frazil pipeline status`, `frazil doctor` and the log's retention.

It is a file in the data folder, which the folder's owner writes: itself, or for a mover that tells it by Flight.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError
from frazil.core.json_file import read_json, write_json
from frazil.core.settings import Settings
from frazil.pipeline.lease import lives, this_host
from frazil.topics.floor import status_path

if TYPE_CHECKING:  # the mover imports Spark, which takes a second; a look at the file needs none of it
    from frazil.pipeline.mover import TickReport

QUIET_WRITE_US = 5_000_000
"""A tick that changed nothing is told only now and then: there are several a second."""
SILENCE_US_MAX = 60_000_000
"""A mover of another host that was not heard of for so long is taken for gone."""

_log = logging.getLogger("frazil.pipeline")


class StatusFile:
    """What is told; `tell` brings it to the file. What could not be told is told with the next."""

    def __init__(self, tell: Callable[[dict[str, Any]], None], clock: Clock) -> None:
        self._to_file = tell
        self._clock = clock
        self._guard = threading.Lock()
        self._rows = 0
        self._commits = 0
        self._errors: dict[str, dict[str, Any]] = {}
        self._value: dict[str, Any] = {}
        self._maintenance: dict[str, Any] | None = None
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

    def maintained(self, told: dict[str, Any]) -> None:
        """How the maintenance of tables stands; whoever stands by has nothing to say."""
        self._maintenance = told
        self.again()

    def failed(self, message: str) -> None:
        """A tick that came to nothing: the topics stand as they stood."""
        self._tell({**self._value, "state": "running", "error": message})

    def stopped(self, error: str | None = None) -> None:
        """Whoever stood by all the time has nothing to say."""
        if self._value:
            self._tell({**self._value, "state": "stopped", "error": error})

    def again(self) -> None:
        """The same once more, for a job that takes long: whoever says nothing is taken for gone."""
        if self._value:
            self._tell(self._value)

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
    """The time is that of the owner's clock, whoever tells."""
    write_json(status_path(settings), {"pid": pid, "host": host, "time_us": clock.now_us(), **value})


def read_status(settings: Settings, clock: Clock) -> dict[str, Any] | None:
    """What the last mover told; `state` is `gone` if it ended without saying so."""
    told = read_json(status_path(settings))
    if told is not None and told.get("state") != "stopped" and not _is_there(told, clock.now_us()):
        told["state"] = "gone"
    return told


def _is_there(told: dict[str, Any], now_us: int) -> bool:
    """A process of this host is asked for; one of another host is judged by when it last told."""
    pid, host, time_us = told.get("pid"), told.get("host"), told.get("time_us")
    if host is None or host == this_host():
        return isinstance(pid, int) and lives(pid)
    return isinstance(time_us, int) and now_us - time_us <= SILENCE_US_MAX

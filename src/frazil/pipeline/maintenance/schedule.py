"""Periodic table maintenance by the leading mover, in a separate process.

It is a separate process because Iceberg's procedures need a JVM with Iceberg, and a compaction must not slow down the
moves. It ends with us, however we end; an interrupted pass has made each commit completely or not at all.
"""

from __future__ import annotations

import json
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frazil.core.clock import Clock
from frazil.core.process.child import Child
from frazil.node.jobs.verbs import reported_error

FIRST_SECONDS = 300
"""The first pass runs early, so that a mover that restarts every hour still maintains its tables."""
ORPHANS_US = 24 * 3_600_000_000

_OF_THE_PARENT = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""With these a child would use the mover's JVM, which `spark-submit` or Spark Connect started for the mover alone."""

_log = logging.getLogger("frazil.pipeline")


class Schedule:
    def __init__(
        self,
        command: Sequence[str],
        interval_seconds: int,
        clock: Clock,
        leads: Callable[[], bool],
        tell: Callable[[dict[str, Any]], None],
    ) -> None:
        self._command = list(command)
        self._interval_seconds = interval_seconds
        self._clock = clock
        self._leads = leads
        self._tell = tell
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._child: Child | None = None
        self._orphans_us: int | None = None
        self._told: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._work, name="frazil-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._guard:
            self._stop.set()
            if self._child is not None:
                self._child.terminate()
        self._thread.join()

    def _work(self) -> None:
        delay_seconds = min(self._interval_seconds, FIRST_SECONDS)
        self._say("waiting", self._clock.now_us() + delay_seconds * 1_000_000)
        while not self._stop.wait(delay_seconds):
            delay_seconds = self._interval_seconds
            if self._leads():
                self._round()

    def _round(self) -> None:
        """Run one pass and report the result; the next runs on schedule."""
        started_us, before = self._clock.now_us(), self._told
        with_orphans = self._orphans_us is None or started_us - self._orphans_us >= ORPHANS_US
        self._say("running", started_us)
        answer, errors = self._run([] if with_orphans else ["--no-orphans"])
        if self._stop.is_set():
            self._tell(before)  # an interrupted pass counts as not begun
            return
        results = _results(answer)
        if results is None:
            why = _why(errors)
            self._say("failed", started_us, error=why)
            _log.error("the maintenance of the tables failed: %s", why)
            return
        if with_orphans:
            self._orphans_us = started_us
        failed = [one["error"] for one in results if one["error"]]
        changed = sum(any(one[key] for key in _CHANGES) for one in results)
        self._say("failed" if failed else "done", started_us, changed, failed[0] if failed else None)
        for error in failed:
            _log.warning("maintenance: %s", error)
        if changed:
            _log.info("maintenance: %d of %d tables changed", changed, len(results))

    def _run(self, more: Sequence[str]) -> tuple[bytes, list[str]]:
        """What the process wrote to stdout, and the end of its stderr. It gets SIGTERM when `close` is called."""
        with self._guard:
            if self._stop.is_set():
                return b"", []
            child = self._child = Child(
                [*self._command, *more],
                env=_environment(os.environ),
                new_session=False,  # it is killed with the mover
            )
        with child:
            answer = child.answer()
            child.wait()
            with self._guard:
                self._child = None
            return answer, child.last_errors()

    def _say(self, state: str, time_us: int, tables: int = 0, error: str | None = None) -> None:
        self._told = {"state": state, "time_us": time_us, "tables": tables, "error": error}
        self._tell(self._told)


_CHANGES = ("files_before", "snapshots_removed", "orphans_removed")


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _OF_THE_PARENT}


def _results(answer: bytes) -> list[dict[str, Any]] | None:
    """What was done to each table; None if the process did not come to say it."""
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _why(errors: list[str]) -> str:
    """The error that the process reported, free of secrets; what others have written there is not repeated."""
    error = reported_error(errors)
    if error is None:
        return "it ended without a report; run `frazil table maintain` to see why"
    return str(error["message"])

"""The maintenance of tables as a job of the mover: now and then, by a process of its own, as long as we lead.

A process of its own, for Iceberg's procedures need a JVM with Iceberg in it, and what a compaction takes must not
slow down the moves. It ends with us, however we end; a round that is broken off has done whole commits or nothing.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from frazil.core.clock import Clock

FIRST_SECONDS = 300
"""The first round comes early, so that a mover that is started anew every hour keeps its tables all the same."""
ORPHANS_US = 24 * 3_600_000_000

_OF_THE_PARENT = ("PYSPARK_GATEWAY_PORT", "PYSPARK_GATEWAY_SECRET", "SPARK_REMOTE", "SPARK_CONNECT_MODE_ENABLED")
"""A child with these would use the mover's JVM, as `spark-submit` or Spark Connect means it for the mover alone."""

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
        self._process: subprocess.Popen[str] | None = None
        self._orphans_us: int | None = None
        self._told: dict[str, Any] = {}
        self._thread = threading.Thread(target=self._work, name="frazil-maintenance", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        with self._guard:
            self._stop.set()
            process = self._process
        if process is not None:
            process.terminate()
        self._thread.join()

    def _work(self) -> None:
        delay_seconds = min(self._interval_seconds, FIRST_SECONDS)
        self._say("waiting", self._clock.now_us() + delay_seconds * 1_000_000)
        while not self._stop.wait(delay_seconds):
            delay_seconds = self._interval_seconds
            if self._leads():
                self._round()

    def _round(self) -> None:
        """What it did, or why it did nothing, is told; the next comes at its time."""
        started_us, before = self._clock.now_us(), self._told
        with_orphans = self._orphans_us is None or started_us - self._orphans_us >= ORPHANS_US
        self._say("running", started_us)
        answer, said = self._run([] if with_orphans else ["--no-orphans"])
        if self._stop.is_set():
            self._tell(before)  # what was broken off is as if it had not begun
            return
        results = _results(answer)
        if results is None:
            why = _told(said)
            self._say("failed", started_us, error=why)
            _log.error("the maintenance of the tables failed: %s", why)
            return
        if with_orphans:
            self._orphans_us = started_us
        errors = [one["error"] for one in results if one["error"]]
        changed = sum(any(one[key] for key in _CHANGES) for one in results)
        self._say("failed" if errors else "done", started_us, changed, errors[0] if errors else None)
        for error in errors:
            _log.warning("maintenance: %s", error)
        if changed:
            _log.info("maintenance: %d of %d tables changed", changed, len(results))

    def _run(self, more: Sequence[str]) -> tuple[str, str]:
        """What the process wrote to stdout and stderr. It gets SIGTERM when `close` is called."""
        with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as said:
            with self._guard:
                if self._stop.is_set():
                    return "", ""
                process = self._process = subprocess.Popen(  # noqa: S603 - our own program
                    [*self._command, *more],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=said,
                    text=True,
                    env=_environment(os.environ),
                )
            assert process.stdout is not None
            answer = process.stdout.read()
            with self._guard:
                process.wait()
                self._process = None
            assert process.stdin is not None
            process.stdin.close()  # only now: its end would be ours
            process.stdout.close()
            said.seek(0)
            return answer, said.read()

    def _say(self, state: str, time_us: int, tables: int = 0, error: str | None = None) -> None:
        self._told = {"state": state, "time_us": time_us, "tables": tables, "error": error}
        self._tell(self._told)


_CHANGES = ("files_before", "snapshots_removed", "orphans_removed")


def _environment(environment: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name not in _OF_THE_PARENT}


def _results(answer: str) -> list[dict[str, Any]] | None:
    """What was done to each table; None if the process did not come to say it."""
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    return found if isinstance(found, list) else None


def _told(said: str) -> str:
    """An error of ours is the last line, and free of secrets; what others have written there is not repeated."""
    lines = said.strip().splitlines()
    try:
        return str(json.loads(lines[-1])["message"])
    except (IndexError, ValueError, KeyError, TypeError):
        return "it ended without a word; run `frazil table maintain` to see why"

"""The mover process of a server: started, restarted when it dies, and stopped with the server.

It is a separate process because it holds a JVM, whose problems must not affect publishers. The mover holds the read end
of a pipe whose write end is ours, so that it ends with us however we end.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from frazil.core.backoff import backoff
from frazil.core.clock import Clock
from frazil.core.process.child import Child

DELAY_SECONDS_MIN = 1.0
DELAY_SECONDS_MAX = 60.0
LIFE_SECONDS_GOOD = 60.0
STOP_SECONDS_MAX = 10.0

_log = logging.getLogger("frazil.serve")


def failures_in_a_row(before: int, lived_seconds: float) -> int:
    """How often the mover has ended, this time included; a mover that ran for long ends the row."""
    return 1 if lived_seconds >= LIFE_SECONDS_GOOD else before + 1


def delay_seconds(failures: int) -> float:
    """Back-off before the next start."""
    return backoff(failures, first=DELAY_SECONDS_MIN, limit=DELAY_SECONDS_MAX)


class MoverProcess:
    def __init__(self, command: Sequence[str], clock: Clock) -> None:
        self._command = list(command)
        self._clock = clock
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._child: Child | None = None
        self._thread = threading.Thread(target=self._work, name="frazil-mover", daemon=True)

    @property
    def up(self) -> bool:
        child = self._child
        return child is not None and child.is_running

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the mover between two ticks. If that takes too long it is killed, which only leaves
        files to clean up."""
        with self._guard:
            self._stop.set()
            child = self._child
        if child is not None and not child.stop(STOP_SECONDS_MAX):
            _log.warning("the mover was in the midst of something, and was killed")
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        failures = 0
        while (child := self._begin()) is not None:
            started_us = self._clock.monotonic_us()
            code = child.wait()
            if self._stop.is_set():
                return
            failures = failures_in_a_row(failures, (self._clock.monotonic_us() - started_us) / 1_000_000)
            delay = delay_seconds(failures)
            _log.error("the mover ended with code %d; it is started again in %.0f s", code, delay)
            if self._stop.wait(delay):
                return

    def _begin(self) -> Child | None:
        with self._guard:
            if self._stop.is_set():
                return None
            if self._child is not None:
                self._child.close()
            self._child = Child(self._command, captured=False)
            return self._child

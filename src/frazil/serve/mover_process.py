"""The mover beside a serving process: started, started again when it dies, and stopped with it.

A process of its own, for it holds a JVM: what happens there must not touch those who publish. The mover holds the
read end of a pipe whose write end is ours, so that it ends with us however we end.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import threading
from collections.abc import Sequence

from frazil.core.clock import Clock

DELAY_SECONDS_MIN = 1.0
DELAY_SECONDS_MAX = 60.0
LIFE_SECONDS_GOOD = 60.0
STOP_SECONDS_MAX = 10.0

_log = logging.getLogger("frazil.serve")


def next_delay_seconds(before: float | None, lived_seconds: float) -> float:
    """How long to wait before the next start: doubling, and from the beginning again after a good life."""
    if before is None or lived_seconds >= LIFE_SECONDS_GOOD:
        return DELAY_SECONDS_MIN
    return min(DELAY_SECONDS_MAX, before * 2)


class MoverProcess:
    def __init__(self, command: Sequence[str], clock: Clock) -> None:
        self._command = list(command)
        self._clock = clock
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._work, name="frazil-mover", daemon=True)

    @property
    def up(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """It ends between two ticks. If that takes too long it is killed, which costs nothing but files to clean up."""
        with self._guard:
            self._stop.set()
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                _log.warning("the mover is in the midst of something, and is killed")
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # and what it started, such as its JVM
            process.wait()
            assert process.stdin is not None
            process.stdin.close()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        delay: float | None = None
        while (process := self._begin()) is not None:
            started_us = self._clock.monotonic_us()
            code = process.wait()
            if self._stop.is_set():
                return
            delay = next_delay_seconds(delay, (self._clock.monotonic_us() - started_us) / 1_000_000)
            _log.error("the mover ended with code %d; it is started again in %.0f s", code, delay)
            if self._stop.wait(delay):
                return

    def _begin(self) -> subprocess.Popen[bytes] | None:
        with self._guard:
            if self._stop.is_set():
                return None
            if self._process is not None and self._process.stdin is not None:
                self._process.stdin.close()
            self._process = subprocess.Popen(  # noqa: S603 - our own program
                self._command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
            )
            return self._process

"""One thread for all periodic work: syncs, rotation by age, retention."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
from collections.abc import Callable

from frazil.core.clock import Clock

_log = logging.getLogger("frazil.log")


class Timer:
    """Calls functions when they are due. The thread starts with the first of them."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._wake = threading.Condition()
        self._due: list[tuple[int, int, Callable[[], object]]] = []
        self._count = itertools.count()
        self._thread: threading.Thread | None = None
        self._closed = False

    def call_in(self, delay_ms: int, function: Callable[[], object]) -> None:
        with self._wake:
            if self._closed:
                return
            due_us = self._clock.monotonic_us() + delay_ms * 1_000
            heapq.heappush(self._due, (due_us, next(self._count), function))
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="frazil-keeper", daemon=True)
                self._thread.start()
            elif self._due[0][2] is function:
                self._wake.notify()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._due.clear()
            self._wake.notify()
        if self._thread is not None:
            self._thread.join()

    def _work(self) -> None:
        while (function := self._next()) is not None:
            try:
                function()
            except Exception:  # noqa: BLE001 - one task must not end the others; it is logged
                _log.exception("a scheduled task of the log failed; it is retried at its next turn")

    def _next(self) -> Callable[[], object] | None:
        with self._wake:
            while not self._closed:
                now_us = self._clock.monotonic_us()
                if self._due and self._due[0][0] <= now_us:
                    return heapq.heappop(self._due)[2]
                self._wake.wait((self._due[0][0] - now_us) / 1e6 if self._due else None)
        return None

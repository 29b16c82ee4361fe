"""Wake readers that wait at the end of a log. A topic without waiting readers has no cost."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Tail:
    """Callbacks to call, once each, when the end moves or the log closes."""

    __slots__ = ("_guard", "_wakers")

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._wakers: set[Callable[[], None]] | None = None

    def add(self, waker: Callable[[], None]) -> None:
        """Register first, check the end again, and only then wait, so that no change is missed."""
        with self._guard:
            if self._wakers is None:
                self._wakers = set()
            self._wakers.add(waker)

    def discard(self, waker: Callable[[], None]) -> None:
        with self._guard:
            if self._wakers is not None:
                self._wakers.discard(waker)

    def wake(self) -> None:
        if self._wakers is None:
            return
        with self._guard:
            wakers, self._wakers = self._wakers, None
        for waker in wakers or ():
            waker()

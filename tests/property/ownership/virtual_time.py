"""An event loop whose time goes on only when nothing is ready: hours pass in no time, and every run is the same."""

from __future__ import annotations

import asyncio
import selectors
from typing import Any


class _NoWaiting(selectors.SelectSelector):
    """Instead of waiting, lets the time pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        assert timeout is not None, "nothing would ever happen"
        self.passed_s += max(0.0, timeout)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._no_waiting = _NoWaiting()
        super().__init__(self._no_waiting)

    def time(self) -> float:
        return self._no_waiting.passed_s


class VirtualClock:
    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def now_us(self) -> int:
        return 1_700_000_000_000_000 + self.monotonic_us()

    def monotonic_us(self) -> int:
        return round(self._loop.time() * 1e6)

"""Time is handed in, so that tests can take it over."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Microseconds since 1970, as the wall clock says; it may step back."""
        ...

    def monotonic_us(self) -> int:
        """Microseconds that never step back, from an arbitrary start."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000

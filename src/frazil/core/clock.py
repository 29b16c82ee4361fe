"""The clock is an argument, so that tests can replace it."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    def now_us(self) -> int:
        """Wall-clock time in microseconds since 1970; it may step back."""
        ...

    def monotonic_us(self) -> int:
        """Monotonic time in microseconds, from an arbitrary start."""
        ...


class SystemClock:
    def now_us(self) -> int:
        return time.time_ns() // 1_000

    def monotonic_us(self) -> int:
        return time.monotonic_ns() // 1_000

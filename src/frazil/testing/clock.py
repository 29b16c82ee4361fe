"""A clock that moves only when a test advances it."""

from __future__ import annotations

import threading

_START_US = 1_700_000_000_000_000


class FakeClock:
    """Both times of a `Clock`, set manually. The wall clock may be stepped back; the monotonic one may not."""

    def __init__(self, now_us: int = _START_US, monotonic_us: int = 0) -> None:
        self._guard = threading.Lock()
        self._now_us = now_us
        self._monotonic_us = monotonic_us

    def now_us(self) -> int:
        with self._guard:
            return self._now_us

    def monotonic_us(self) -> int:
        with self._guard:
            return self._monotonic_us

    def advance(self, duration_us: int) -> None:
        """Advance both clocks."""
        if duration_us < 0:
            raise ValueError("time passes forwards; use step_wall for a wall clock that is set back")
        with self._guard:
            self._now_us += duration_us
            self._monotonic_us += duration_us

    def step_wall(self, duration_us: int) -> None:
        """Step the wall clock forward or back, as an administrator or NTP does; the monotonic clock is unchanged."""
        with self._guard:
            self._now_us += duration_us

"""The bandwidth of all uploads together."""

from __future__ import annotations

import threading

from frazil.core.clock import Clock

BURST_SECONDS = 1
"""What was not used is kept for so long."""


class Bandwidth:
    """Grants bytes at a rate. Thread-safe. A grant may exceed what is there: the next one waits for it."""

    def __init__(self, bytes_per_second_max: int | None, clock: Clock) -> None:
        self._rate = bytes_per_second_max
        self._clock = clock
        self._guard = threading.Lock()
        self._free_us = clock.monotonic_us() - BURST_SECONDS * 1_000_000
        """When all granted bytes have been sent at that rate."""

    def take(self, size_bytes: int) -> float:
        """Take bytes, and return the seconds to wait before they are sent."""
        if self._rate is None:
            return 0.0
        with self._guard:
            now_us = self._clock.monotonic_us()
            start_us = max(self._free_us, now_us - BURST_SECONDS * 1_000_000)
            self._free_us = start_us + size_bytes * 1_000_000 // self._rate
            return max(0, start_us - now_us) / 1e6

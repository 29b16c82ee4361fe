"""Counters of the log, kept plain so that a hot path only adds numbers; exported as metrics elsewhere."""

from __future__ import annotations

import bisect
import threading

SECONDS_BOUNDS = (0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0)
ROWS_BOUNDS = (1.0, 4.0, 16.0, 64.0, 256.0, 1024.0, 4096.0, 16384.0, 65536.0)


class Histogram:
    """Counts by bucket, the last bucket being everything above; cumulative only when read."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """The owner guards it."""
        self._counts[bisect.bisect_left(self.bounds, value)] += 1
        self._sum += value

    def read(self) -> tuple[list[int], float]:
        return list(self._counts), self._sum


class LogMetrics:
    def __init__(self) -> None:
        self._guard = threading.Lock()
        self.rows = 0
        self.bytes = 0
        self.failed_rows = 0
        self.refused = 0
        self.reads_cached = 0
        self.reads_from_files = 0
        self.reads_from_objects = 0
        self.reads_from_tables = 0
        self.group_rows = Histogram(ROWS_BOUNDS)
        self.ack_seconds = Histogram(SECONDS_BOUNDS)
        self.sync_seconds = Histogram(SECONDS_BOUNDS)

    def committed(self, rows: int, size_bytes: int, waited_seconds: float) -> None:
        """`waited_seconds` is the wait of the first caller of the group: one observation for all of it."""
        with self._guard:
            self.rows += rows
            self.bytes += size_bytes
            self.group_rows.observe(rows)
            self.ack_seconds.observe(waited_seconds)

    def synced(self, seconds: float) -> None:
        with self._guard:
            self.sync_seconds.observe(seconds)

    def failed(self, rows: int) -> None:
        with self._guard:
            self.failed_rows += rows

    def refuse(self) -> None:
        with self._guard:
            self.refused += 1

    def read_from_cache(self) -> None:
        with self._guard:
            self.reads_cached += 1

    def read_from_file(self) -> None:
        with self._guard:
            self.reads_from_files += 1

    def read_from_objects(self) -> None:
        with self._guard:
            self.reads_from_objects += 1

    def read_from_table(self) -> None:
        with self._guard:
            self.reads_from_tables += 1

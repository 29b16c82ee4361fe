"""What waits to be appended: bounded in bytes, and dropped and counted beyond. Putting never waits."""

from __future__ import annotations

import threading
from collections import Counter, deque
from typing import Generic, TypeVar

from frazil.telemetry.signals import Signal

Item = TypeVar("Item")

FULL = "queue_full"


class OwnCounts:
    """How many spans, records and points were stored, and how many were dropped and why. Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._stored: Counter[Signal] = Counter()
        self._dropped: Counter[tuple[Signal, str]] = Counter()

    def stored(self, signal: Signal, items: int) -> None:
        with self._guard:
            self._stored[signal] += items

    def dropped(self, signal: Signal, reason: str, items: int) -> None:
        with self._guard:
            self._dropped[signal, reason] += items

    def read(self) -> tuple[dict[Signal, int], dict[tuple[Signal, str], int]]:
        with self._guard:
            return dict(self._stored), dict(self._dropped)


class OwnQueue(Generic[Item]):
    """Any thread may call it."""

    def __init__(self, signal: Signal, bytes_max: int, counts: OwnCounts) -> None:
        self._signal = signal
        self._bytes_max = bytes_max
        self._counts = counts
        self._guard = threading.Lock()
        self._waiting: deque[tuple[Item, int, int]] = deque()
        self._bytes = 0

    def put(self, item: Item, size_bytes: int, count: int = 1) -> None:
        with self._guard:
            is_full = self._bytes + size_bytes > self._bytes_max
            if not is_full:
                self._waiting.append((item, size_bytes, count))
                self._bytes += size_bytes
        if is_full:
            self._counts.dropped(self._signal, FULL, count)

    def take(self, count_max: int) -> list[Item]:
        """Return the oldest items."""
        found: list[Item] = []
        with self._guard:
            while self._waiting and len(found) < count_max:
                item, size_bytes, _ = self._waiting.popleft()
                self._bytes -= size_bytes
                found.append(item)
        return found

    def drop(self, reason: str) -> None:
        """Drop all that waits, and count it."""
        with self._guard:
            count = sum(each for _, _, each in self._waiting)
            self._waiting.clear()
            self._bytes = 0
        if count:
            self._counts.dropped(self._signal, reason, count)

"""Deadlines of messages. A deadline that no longer holds is skipped when it is due, not searched for."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator

Holds = Callable[[int, int], bool]
"""Whether this deadline is still that of this message."""


class Alarms:
    __slots__ = ("_heap", "_holds")

    def __init__(self, holds: Holds) -> None:
        self._heap: list[tuple[int, int]] = []
        self._holds = holds

    def add(self, at_us: int, offset: int) -> None:
        heapq.heappush(self._heap, (at_us, offset))

    def next_us(self) -> int | None:
        """Return the next valid deadline."""
        while self._heap and not self._holds(*self._heap[0]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def due(self, now_us: int) -> Iterator[int]:
        """Return the messages whose deadline has passed, each once, the earliest first."""
        while self._heap and self._heap[0][0] <= now_us:
            alarm = heapq.heappop(self._heap)
            if self._holds(*alarm):
                yield alarm[1]

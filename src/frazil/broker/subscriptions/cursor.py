"""The cursor of a subscription: everything below `end` is acknowledged, and some messages above it.

Acknowledgements arrive in any order; the cursor is the end of the contiguous run. Acknowledgements above it are kept as
ranges, usually few.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator

from frazil.core.offsets import OffsetRange


class Cursor:
    __slots__ = ("_ends", "_starts", "end")

    def __init__(self, end: int, above: Iterable[tuple[int, int]] = ()) -> None:
        self.end = end
        self._starts: list[int] = []
        self._ends: list[int] = []
        for start, stop in above:
            self._add(start, stop)
        self._advance()

    def ack(self, offset: int) -> bool:
        """Return whether the acknowledgement was new."""
        if self.is_acked(offset):
            return False
        if offset == self.end:
            self.end += 1
        else:
            self._add(offset, offset + 1)
        self._advance()
        return True

    def finish(self, start: int, end: int) -> None:
        """Mark these as done without an acknowledgement."""
        self._add(start, end)
        self._advance()

    @property
    def acked_above(self) -> int:
        """Return how many are acknowledged above the end."""
        return sum(self._ends) - sum(self._starts)

    def is_acked(self, offset: int) -> bool:
        if offset < self.end:
            return True
        at = bisect.bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def above(self) -> Iterator[OffsetRange]:
        """Return the ranges acknowledged above the end, in order."""
        for start, end in zip(self._starts, self._ends, strict=True):
            yield OffsetRange(start, end)

    def _add(self, start: int, end: int) -> None:
        at = bisect.bisect_left(self._starts, start)
        if at and self._ends[at - 1] >= start:
            at -= 1
            start = self._starts[at]
        last = at
        while last < len(self._starts) and self._starts[last] <= end:
            end = max(end, self._ends[last])
            last += 1
        self._starts[at:last] = [start]
        self._ends[at:last] = [end]

    def _advance(self) -> None:
        while self._starts and self._starts[0] <= self.end:
            self.end = max(self.end, self._ends[0])
            del self._starts[0], self._ends[0]

"""How far a subscription is: everything below `end` is acknowledged, and some of what lies above.

Acknowledgements come in any order, the cursor is the end of the contiguous run. What is acknowledged above it is kept
as ranges, few however many there are.
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
        """Whether it was news."""
        if self.is_acked(offset):
            return False
        if offset == self.end:
            self.end += 1
        else:
            self._add(offset, offset + 1)
        self._advance()
        return True

    def finish(self, start: int, end: int) -> None:
        """These are done, without an acknowledgement."""
        self._add(start, end)
        self._advance()

    @property
    def acked_above(self) -> int:
        """How many are acknowledged beyond the end."""
        return sum(self._ends) - sum(self._starts)

    def is_acked(self, offset: int) -> bool:
        if offset < self.end:
            return True
        at = bisect.bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def above(self) -> Iterator[OffsetRange]:
        """What is acknowledged beyond the end, in order."""
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

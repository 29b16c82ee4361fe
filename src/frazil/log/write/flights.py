"""Groups of rows on their way to the object store, in order of their offsets."""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from frazil.core.errors import FrazilError
from frazil.log.metrics import LogMetrics
from frazil.log.write.group import Part, SentPart
from frazil.log.write.stored_groups import FrameGroup

BACK_OFF_FIRST_MS = 50
BACK_OFF_MAX_MS = 5_000
MISSED_SECONDS, AFTER_PAUSE_MS = 1.0, 5_000

_jitter = random.Random()  # noqa: S311 - spreads retries, keeps no secret


@dataclass(slots=True, eq=False)
class Flight:
    """One object. It counts once it and all before it have arrived."""

    group: FrameGroup
    parts: Sequence[Part]
    """The callers that wait for it; none of rows that a restart has found in the files."""
    content: bytes | None = None
    departed_at: float = field(default_factory=time.perf_counter)
    tries: int = 0
    waits: bool = False
    """Whether its next try waits for its time."""
    gave_up: bool = False
    arrived: bool = False
    answered: bool = False
    """Whether its callers got the answer that the outcome is unknown."""

    def answer(self) -> None:
        """Give the callers their offsets."""
        first = self.group.first
        for part in () if self.answered else self.parts:
            part.settle(first, None)
            first += part.count

    def count(self, metrics: LogMetrics) -> None:
        """Count the rows of callers."""
        if self.parts:
            size = sum(memoryview(one).nbytes for one in self.group.frames)
            seconds = time.perf_counter() - self.parts[0].queued_at
            metrics.committed(self.group.end - self.group.first, size, seconds)

    def refuse(self, error: FrazilError, numbered: FrazilError | None = None) -> None:
        """Give the callers an error: `numbered` to those that may send their rows again, as these are numbered."""
        for part in () if self.answered else self.parts:
            part.settle(-1, numbered if numbered is not None and isinstance(part, SentPart) else error)
        self.answered = True


@dataclass(slots=True)
class Flights:
    """Not thread-safe: the log guards it."""

    waiting: deque[Flight] = field(default_factory=deque)

    def __len__(self) -> int:
        return len(self.waiting)

    def __contains__(self, flight: object) -> bool:
        return flight in self.waiting

    def add(self, flight: Flight) -> None:
        self.waiting.append(flight)

    def take_arrived(self) -> Flight | None:
        """Take the first flight, if it has arrived."""
        return self.waiting.popleft() if self.waiting and self.waiting[0].arrived else None

    def take_all(self) -> list[Flight]:
        flights = list(self.waiting)
        self.waiting.clear()
        return flights


@dataclass(slots=True)
class Deadline:
    """When callers are to be answered at the latest. A process that was paused has missed it, and may have answers that
    it has not read yet: it gets a little more time, once."""

    _due: float = 0.0
    _is_extended: bool = False

    def set(self, delay_ms: int) -> int:
        self._due = time.perf_counter() + delay_ms / 1_000
        return delay_ms

    def extended_ms(self) -> int:
        """Return how much longer to wait at the deadline."""
        self._is_extended = not self._is_extended and time.perf_counter() - self._due > MISSED_SECONDS
        return self.set(AFTER_PAUSE_MS) if self._is_extended else 0


def back_off_ms(tries: int) -> int:
    """Return how long to wait before the next try: longer each time, and not the same for all."""
    longest = min(BACK_OFF_FIRST_MS << min(tries - 1, 10), BACK_OFF_MAX_MS)
    return int(longest * _jitter.uniform(0.5, 1.0))

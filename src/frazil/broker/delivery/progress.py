"""The stored progress of a subscription: everything that must survive a restart. The rest is derived from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from frazil.core.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class Progress:
    incarnation: int
    """Identity of the subscription since it was created or reset. Answers to deliveries of another one are ignored."""
    cursor: int
    """Every message below is done: acknowledged, skipped or published as a dead letter."""
    done: tuple[OffsetRange, ...] = ()
    """Messages above the cursor that are done, in order, without overlaps."""
    attempts: Mapping[int, int] = field(default_factory=dict)
    """Deliveries so far of each message that was delivered and is not done."""

    def clipped(self, log_end: int) -> Progress:
        """Clip the progress to the log's end. A log that lost its tail assigns those offsets to other messages."""
        if self.cursor >= log_end:
            return Progress(self.incarnation, log_end)
        kept = (OffsetRange(one.start, min(one.end, log_end)) for one in self.done if one.start < log_end)
        attempts = {offset: count for offset, count in self.attempts.items() if offset < log_end}
        return Progress(self.incarnation, self.cursor, tuple(kept), attempts)

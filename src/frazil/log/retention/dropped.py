"""Ranges that retention removed without a table that holds their rows, and the policy that applied.

A verification that accounts for every offset from 0 uses them: a range below the log's first offset is either recorded
here, or it must be in the table. Topics from before this record have none: what was removed there is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.core.offsets import OffsetRange
from frazil.core.settings import RetentionSettings

DROPPED_MAX = 1_000
"""Entries of one topic. Entries merge unless the policy changed between them; beyond the limit the oldest are dropped,
which makes their rows unknown again, never proven.
"""


@dataclass(frozen=True, slots=True)
class DroppedRange:
    """One range, and the retention that removed it."""

    offsets: OffsetRange
    retention: RetentionSettings

    def as_content(self) -> dict[str, Any]:
        return {"start": self.offsets.start, "end": self.offsets.end, "retention": self.retention.model_dump()}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> DroppedRange:
        return cls(OffsetRange(int(content["start"]), int(content["end"])), RetentionSettings(**content["retention"]))


def with_dropped(dropped: Sequence[DroppedRange], added: DroppedRange) -> tuple[DroppedRange, ...]:
    """Append an entry; it extends the last one if range and policy allow."""
    last = dropped[-1] if dropped else None
    if last is not None and last.offsets.end >= added.offsets.start and last.retention == added.retention:
        joined = OffsetRange(min(last.offsets.start, added.offsets.start), max(last.offsets.end, added.offsets.end))
        return (*dropped[:-1], DroppedRange(joined, last.retention))
    return (*dropped, added)[-DROPPED_MAX:]


def dropped_below(dropped: Iterable[DroppedRange], offset: int) -> tuple[DroppedRange, ...]:
    """Clip the entries to `offset`: a repaired log may begin lower than before."""
    return tuple(
        DroppedRange(OffsetRange(one.offsets.start, min(one.offsets.end, offset)), one.retention)
        for one in dropped
        if one.offsets.start < offset
    )


def dropped_ranges(dropped: Iterable[DroppedRange]) -> tuple[OffsetRange, ...]:
    """Return only the ranges, in order, without overlaps, for all policies."""
    found: list[OffsetRange] = []
    for each in sorted(one.offsets for one in dropped):
        if found and each.start <= found[-1].end:
            found[-1] = OffsetRange(found[-1].start, max(found[-1].end, each.end))
        else:
            found.append(each)
    return tuple(found)

"""Ranges that retention removed while no table was there to hold their rows, and under which policy.

A proof that accounts for every offset from 0 asks here: a range below the log's first offset is either recorded here,
or it must be in the table. A record from before these ranges were kept has none: what it removed is unknown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from frazil.core.offsets import OffsetRange
from frazil.core.settings import RetentionSettings

DROPPED_MAX = 1_000
"""Entries of one topic. Entries merge unless the policy changed between them; past the limit the oldest are
forgotten, which makes their rows unknown again, never proven."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """One range, and the retention that removed it."""

    offsets: OffsetRange
    retention: RetentionSettings

    def as_content(self) -> dict[str, Any]:
        return {"start": self.offsets.start, "end": self.offsets.end, "retention": self.retention.model_dump()}

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> Dropped:
        return cls(OffsetRange(int(content["start"]), int(content["end"])), RetentionSettings(**content["retention"]))


def with_dropped(dropped: Sequence[Dropped], added: Dropped) -> tuple[Dropped, ...]:
    """The entries with one more at their end; it continues the last one where range and policy allow."""
    last = dropped[-1] if dropped else None
    if last is not None and last.offsets.end >= added.offsets.start and last.retention == added.retention:
        joined = OffsetRange(min(last.offsets.start, added.offsets.start), max(last.offsets.end, added.offsets.end))
        return (*dropped[:-1], Dropped(joined, last.retention))
    return (*dropped, added)[-DROPPED_MAX:]


def dropped_below(dropped: Iterable[Dropped], offset: int) -> tuple[Dropped, ...]:
    """What is left of the entries below `offset`: a repaired log may begin lower than it did."""
    return tuple(
        Dropped(OffsetRange(one.offsets.start, min(one.offsets.end, offset)), one.retention)
        for one in dropped
        if one.offsets.start < offset
    )


def dropped_ranges(dropped: Iterable[Dropped]) -> tuple[OffsetRange, ...]:
    """The ranges alone, in order, without overlaps, whatever policy removed each."""
    found: list[OffsetRange] = []
    for each in sorted(one.offsets for one in dropped):
        if found and each.start <= found[-1].end:
            found[-1] = OffsetRange(found[-1].start, max(found[-1].end, each.end))
        else:
            found.append(each)
    return tuple(found)

"""Sets of offsets as sorted lists of ranges, used to compute what a verification has covered."""

from __future__ import annotations

from collections.abc import Iterable

from frazil.core.offsets import OffsetRange


def merged(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Merge overlapping and adjacent ranges into sorted, disjoint ranges."""
    found: list[OffsetRange] = []
    for one in sorted(ranges):
        if found and one.start <= found[-1].end:
            found[-1] = OffsetRange(found[-1].start, max(found[-1].end, one.end))
        else:
            found.append(one)
    return found


def without(whole: OffsetRange, ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Return the parts of `whole` that are in none of the ranges."""
    parts, at = [], whole.start
    for one in merged(ranges):
        if one.start >= whole.end:
            break
        if at < one.start:
            parts.append(OffsetRange(at, one.start))
        at = max(at, one.end)
    return [*parts, OffsetRange(at, whole.end)] if at < whole.end else parts


def below(ranges: Iterable[OffsetRange], end: int) -> list[OffsetRange]:
    """Return the parts of the ranges that lie below `end`."""
    return [OffsetRange(one.start, min(one.end, end)) for one in ranges if one.start < end]


def total(ranges: Iterable[OffsetRange]) -> int:
    """Count the offsets in disjoint ranges."""
    return sum(len(one) for one in ranges)

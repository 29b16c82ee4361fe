"""Read a log across its tiers: cache, files, table, and any further tier.

A tier reports its extent, finds a time, and returns batches of a range. The only state of a walk is its next offset.
For each batch it asks the hottest tier that holds that offset, so rows may be evicted, rotated, uploaded or removed
between two batches. A new kind of tier implements `Tier` and joins the list; nothing here changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from frazil.core.offsets import OffsetRange

OFFSET_MAX = 2**63 - 1
"""The end of a range without a known end."""


class Gone(Exception):
    """A tier no longer holds an offset, or never did: another tier has to be asked."""

    def __init__(self, offset: int) -> None:
        super().__init__(f"offset {offset} is not here")
        self.offset = offset


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets `start` up to, but not including, `end` of a tier.

    Start and end are equal for a tier that is empty but has a position: earlier rows are in colder tiers.
    """

    start: int
    end: int

    @classmethod
    def of(cls, span: OffsetRange | None) -> Extent | None:
        return None if span is None else cls(span.start, span.end)


class TierBatches(Iterator[pa.RecordBatch], Protocol):
    """Batches with `_offset`, in order. It ends with the range or the tier, and raises `Gone` if rows are removed.

    `offset` is the start of the next batch, or the end of this tier's rows. It skips offsets only for a gap that an
    administrator has accepted.
    """

    @property
    def offset(self) -> int: ...

    def close(self) -> None: ...


class Tier(Protocol):
    """One place that holds rows of a log."""

    @property
    def is_in_memory(self) -> bool:
        """Whether it answers without I/O, so that an event loop may call it."""
        ...

    def may_hold(self, offset: int) -> bool:
        """Whether it may hold the offset, as far as is known without I/O."""
        ...

    def extent(self) -> Extent | None:
        """Return the offsets that it holds now; None if it has none, or guarantees no range."""
        ...

    def find(self, time_us: int) -> int | None:
        """Return the first offset of its extent that was appended at or after a time; None if there is none."""
        ...

    def batches(self, wanted: OffsetRange) -> TierBatches:
        """Return the available rows from the start of the range on. Raises `Gone` if the first one is missing.

        The end may be beyond the log's end. The walk requests no batch beyond its visible end.
        """
        ...


class TierWalk:
    """Batches from `start` up to `end` across tiers, hottest first. Not thread-safe.

    `offset` may be set from outside: the next batch begins there.
    """

    _batches: TierBatches | None = None

    def __init__(self, tiers: Sequence[Tier], start: int, end: int | None = None) -> None:
        self._tiers = tiers
        self._hottest = tiers[0] if tiers else None
        self._end = end
        self._tier: Tier | None = None
        self._batches: TierBatches | None = None
        self._opened_at = 0
        self._progressed = False
        """Whether the batches that ended last got any further than where they began."""
        self._is_stepping = self._close_is_due = False
        self.offset = start

    @property
    def end(self) -> int | None:
        """Return the end of the walk; None if it has none."""
        return self._end

    @property
    def finished(self) -> bool:
        return self._end is not None and self.offset >= self._end

    def step(self, *, in_memory_only: bool = False) -> pa.RecordBatch | None:
        """Return the next batch; None at the end, or with `in_memory_only` if no tier in memory has it.

        Raises `Gone` if no tier holds the next offset.
        """
        self._is_stepping = True
        try:
            return self._step(in_memory_only=in_memory_only)
        finally:
            self._is_stepping = False
            if self._close_is_due:
                self.close()

    def _step(self, *, in_memory_only: bool) -> pa.RecordBatch | None:
        while not self._is_at_end():
            if self._tier is self._hottest and self._tier is not None:
                batch = self._from_hottest()
                if batch is not None:
                    return batch
                if self._batches is None:
                    continue  # it has ended, perhaps behind a gap that reaches to the end
            for tier in self._tiers:
                if in_memory_only and not tier.is_in_memory:
                    return None
                if tier is self._tier or tier.may_hold(self.offset):
                    batch = self._from(tier)
                    if batch is not None:
                        return batch
                    if self._progressed:
                        break  # rows were returned or a gap was skipped: ask the hottest tier for the next offset
            else:
                raise Gone(self.offset)
        return None

    def close(self) -> None:
        """Close files and connections. The walk continues at its offset if it is asked again.

        Another thread may call this while a step runs, as after a cancelled read: the step then closes when it ends.
        """
        self._close_is_due = True  # first: either this call sees that no step runs, or the step sees the flag
        if not self._is_stepping:
            self._close_is_due = False
            self._let_go()

    def __del__(self) -> None:
        self._let_go()  # else prefetching threads wait for a reader that was dropped, and the process for them

    def _let_go(self) -> None:
        if self._batches is not None:
            batches, self._batches, self._tier = self._batches, None, None
            batches.close()

    def _is_at_end(self) -> bool:
        """Whether no tier can be asked for the next offset."""
        return self._end is not None and self.offset >= self._end

    def _from_hottest(self) -> pa.RecordBatch | None:
        """Return the next batch of the open iterator without asking other tiers: the fast path at the tail."""
        batches = self._batches
        if batches is None or batches.offset != self.offset:
            return None
        try:
            batch = next(batches)
        except (StopIteration, Gone):
            self.offset = max(self.offset, batches.offset)
            self._let_go()
            return None
        except BaseException:
            self._let_go()
            raise
        self.offset = batches.offset
        return batch

    def _from(self, tier: Tier) -> pa.RecordBatch | None:
        """Return the next batch of one tier; None if it has none at this offset, or no longer."""
        self._progressed = False
        while (batches := self._opened(tier)) is not None:
            behind = self.offset - batches.offset
            try:
                batch = next(batches, None)
            except Gone:
                batch = None
            except BaseException:
                self._let_go()
                raise
            if behind > 0 and batch is not None:
                batch = _from_offset(batch, self.offset)
                if not batch.num_rows:  # far behind: a new look is cheaper than reading all that lies between
                    self._let_go()
                    continue
            if batches.offset > self.offset:
                self.offset = batches.offset
            if batch is None:
                self._let_go()
                self._progressed = self.offset > self._opened_at
            return batch
        return None

    def _opened(self, tier: Tier) -> TierBatches | None:
        """Return the open iterator of the tier, or open it and close that of another tier. None if it has none."""
        if tier is self._tier:
            assert self._batches is not None
            ahead = self._batches.offset - self.offset
            if ahead == 0 or (ahead < 0 and not tier.is_in_memory):
                return self._batches
        try:
            batches = tier.batches(OffsetRange(self.offset, self._stop_before(tier)))
        except Gone:
            if tier is self._tier:
                self._let_go()
            return None
        self._let_go()
        self._tier, self._batches, self._opened_at = tier, batches, self.offset
        return batches

    def _stop_before(self, tier: Tier) -> int:
        """Return where the next hotter tier begins now. Rows that leave it are requested when the walk gets there."""
        stop = OFFSET_MAX if self._end is None else self._end
        for hotter in self._tiers:
            if hotter is tier:
                break
            extent = hotter.extent()
            if extent is not None and self.offset < extent.start < stop:
                stop = extent.start
        return stop


class ContiguousBatches:
    """An iterator of batches without gaps as `TierBatches`."""

    def __init__(self, batches: Iterator[pa.RecordBatch], start: int) -> None:
        self._batches = batches
        self.offset = start

    def __iter__(self) -> ContiguousBatches:
        return self

    def __next__(self) -> pa.RecordBatch:
        batch = next(self._batches)
        self.offset += batch.num_rows
        return batch

    def close(self) -> None:
        close = getattr(self._batches, "close", None)
        if close is not None:
            close()


def first_offset(tiers: Iterable[Tier], end: int, wanted: int = 0) -> int:
    """Return the first offset that any tier holds, or `end`.

    Stops at the first tier that begins at or before `wanted`, and returns that tier's start.
    """
    first = end
    for tier in tiers:
        extent = tier.extent()
        if extent is not None:
            first = min(first, extent.start)
            if extent.start <= wanted:
                break
    return first


def find_time(tiers: Sequence[Tier], time_us: int, end: int) -> int:
    """Return the first offset appended at or after a time, or `end`. Append times never decrease within a log."""
    first = end
    for tier in tiers:
        found = tier.find(time_us)
        if found is not None:
            first = min(first, found)
        if tier is tiers[-1]:
            break
        extent = tier.extent()  # after the search: retention may have moved the start on meanwhile, never back
        is_within = found is None or (extent is not None and found > extent.start)
        if extent is not None and (not extent.start or (extent.start < extent.end and is_within)):
            break  # nothing is before it, or its first row is before the time, and so is all that colder tiers have
    return first


def _from_offset(batch: pa.RecordBatch, offset: int) -> pa.RecordBatch:
    return batch.slice(int(np.searchsorted(batch.column(0).to_numpy(), offset)))

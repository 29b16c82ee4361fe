"""The pure decision which segments may be removed, and their removal. `TopicLog.maintain` acts on it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

from frazil.core.disk import Disk
from frazil.core.offsets import OffsetRange
from frazil.core.settings import RetentionSettings
from frazil.log.folder.catalog import TopicRecorder
from frazil.log.read.segment_reader import first_time_us
from frazil.log.retention.dropped import DroppedRange
from frazil.log.write.disk_budget import DiskBudget
from frazil.log.write.segment import Segment


def removable(
    segments: Sequence[Segment], log_end: int, retention: RetentionSettings, now_us: int, floor: int
) -> list[Segment]:
    """Return the oldest whole segments that exceed the age or the size, and lie entirely below `floor`.

    With `until_acked` alone, everything below the floor is removable: all subscriptions have acknowledged it. By size,
    the last segment always stays; by age, it is removed too, once its newest row is old enough.
    """
    total_bytes = sum(segment.used_bytes for segment in segments)
    going: list[Segment] = []
    for index, segment in enumerate(segments):
        following = segments[index + 1] if index + 1 < len(segments) else None
        end = following.base if following else log_end
        if end > floor or end == segment.base:
            break
        too_many = retention.bytes is not None and total_bytes > retention.bytes and following is not None
        newest_us = segment.last_time_us
        too_old = (
            retention.age_ms is not None and newest_us is not None and now_us - newest_us >= retention.age_ms * 1_000
        )
        if not (too_many or too_old or retention.only_until_acked):
            break
        going.append(segment)
        total_bytes -= segment.used_bytes
    return going


def learn_times(disk: Disk, segments: Sequence[Segment], last_time_us: int) -> None:
    """Estimate segment ages after a restart: the first row of the next segment bounds each."""
    for segment, following in itertools.pairwise(segments):
        if segment.last_time_us is None:
            segment.last_time_us = first_time_us(disk, following) or last_time_us


class Removal:
    """Segments being removed, oldest first; a failed removal is retried."""

    def __init__(
        self, disk: Disk, budget: DiskBudget, recorder: TopicRecorder, dropped: tuple[DroppedRange, ...] = ()
    ) -> None:
        self._disk = disk
        self._budget = budget
        self._recorder = recorder
        self.dropped = dropped
        self.going: list[Segment] = []

    def begin(
        self,
        segments: Sequence[Segment],
        first_offset: int,
        retention: RetentionSettings,
        last_time_us: int,
        *,
        in_table: bool,
    ) -> None:
        """Durably record the removal: the new beginning of the log, and the removed ranges that no table holds."""
        dropped = None if in_table else DroppedRange(OffsetRange(segments[0].base, first_offset), retention)
        self.dropped = self._recorder.record_removed(first_offset, dropped, last_time_us)
        self.going += segments

    def finish(self) -> int:
        """Remove each durably before the next, so that a crash leaves no gap; returns the bytes."""
        removed_bytes = 0
        while self.going:
            segment = self.going[0]
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(segment.path)
            self._disk.sync_folder(segment.path.parent)
            self._budget.give_back(segment.allocated_bytes)
            removed_bytes += segment.allocated_bytes
            del self.going[0]
        return removed_bytes

"""Which segments may go, which is a pure decision, and how they go. `TopicLog.maintain` acts on it."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence

from frazil.core.disk import Disk
from frazil.core.offsets import OffsetRange
from frazil.core.settings import RetentionSettings
from frazil.log.budget import DiskBudget
from frazil.log.catalog import TopicRecorder
from frazil.log.dropped import Dropped
from frazil.log.segment import Segment
from frazil.log.segment_reader import first_time_us


def removable(
    segments: Sequence[Segment], log_end: int, retention: RetentionSettings, now_us: int, floor: int
) -> list[Segment]:
    """Whole segments from the oldest on that are past the age or the size, and lie entirely below `floor`.

    With `until_acked` alone all below the floor goes: it is how far everyone has acknowledged. By size the last
    segment always stays; by age it goes too, once its newest row is old enough.
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
    """After a restart the ages of older segments are not known: the next one's first row bounds each."""
    for segment, following in itertools.pairwise(segments):
        if segment.last_time_us is None:
            segment.last_time_us = first_time_us(disk, following) or last_time_us


class Removal:
    """Segments on their way out, oldest first; a removal that fails is tried again."""

    def __init__(
        self, disk: Disk, budget: DiskBudget, recorder: TopicRecorder, dropped: tuple[Dropped, ...] = ()
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
        """Decide durably that these go: where the log begins, and what of it no table holds."""
        dropped = None if in_table else Dropped(OffsetRange(segments[0].base, first_offset), retention)
        self.dropped = self._recorder.record_removed(first_offset, dropped, last_time_us)
        self.going += segments

    def finish(self) -> int:
        """Each is durably gone before the next, so that no crash leaves a gap; returns the bytes."""
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

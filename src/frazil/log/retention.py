"""Which segments may go. A pure decision: `TopicLog.maintain` acts on it."""

from __future__ import annotations

from collections.abc import Sequence

from frazil.core.settings import RetentionSettings
from frazil.log.segment import Segment


def removable(
    segments: Sequence[Segment], log_end: int, retention: RetentionSettings, now_us: int, floor: int
) -> list[Segment]:
    """Whole segments from the oldest on that are past the age or the size, and lie entirely below `floor`.

    With `until_acked` all below the floor goes: it is how far everyone has acknowledged. By size the last segment
    always stays; by age it goes too, once its newest row is old enough.
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
        if not (too_many or too_old or retention.until_acked):
            break
        going.append(segment)
        total_bytes -= segment.used_bytes
    return going

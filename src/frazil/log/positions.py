"""Where a reader starts: `earliest`, `latest`, an offset or a point in time, as an offset."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np

from frazil.core.errors import InvalidPosition, OffsetOutOfRange
from frazil.log.history import first_offset
from frazil.log.segment import Segment
from frazil.log.segment_reader import SegmentReader, append_times_us, first_time_us
from frazil.log.topic_log import TopicLog

Start = str | int | datetime
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


def resolve_start(log: TopicLog, start: Start) -> int:
    """The first offset to read. A time names the first row appended at or after it."""
    check_start(start)
    if isinstance(start, datetime):
        return offset_at_time(log, time_us(start))
    if start == "earliest":
        return first_offset(log)
    if start == "latest":
        return log.visible_end
    assert isinstance(start, int)
    if not log.first_offset <= start <= log.visible_end:
        first = first_offset(log)
        if not first <= start <= log.visible_end:
            raise OffsetOutOfRange(str(log.name), start, first, log.visible_end)
    return start


def check_start(start: Start) -> None:
    """A start is a word, an offset or a point in time; what it means is for the log or the table to say."""
    known = start in ("earliest", "latest") if isinstance(start, str) else isinstance(start, int | datetime)
    if isinstance(start, bool) or not known:
        raise InvalidPosition(f"start must be 'earliest', 'latest', an offset or a datetime, not {start!r}")
    if isinstance(start, datetime) and start.tzinfo is None:
        raise InvalidPosition("start: a datetime needs a time zone, for example datetime.now(timezone.utc)")


def time_us(time: datetime) -> int:
    """A point in time as the log counts it: microseconds since 1970."""
    return (time - _EPOCH) // timedelta(microseconds=1)


def check_end(end: int | None) -> None:
    """An end may lie beyond the log, but it is an offset."""
    if end is not None and (isinstance(end, bool) or not isinstance(end, int) or end < 0):
        raise InvalidPosition(f"end must be an offset, not {end!r}")


def needs_lookup(log: TopicLog, start: Start) -> bool:
    """Whether the first offset has to be looked up on a disk or in a table: nothing for an event loop."""
    if isinstance(start, datetime):
        return True
    removed = log.first_offset > 0 and log.history is not None
    return removed and (start == "earliest" or (isinstance(start, int) and start < log.first_offset))


def offset_at_time(log: TopicLog, time_us: int) -> int:
    """The first visible offset whose append time is not before `time_us`; the end if there is none."""
    found = _offset_in_files(log, time_us)
    if found > log.first_offset or not log.first_offset or log.history is None:
        return found
    older = log.history.offset_at_time(time_us)  # all that is left in the files is at or after the time
    return found if older is None else min(found, older)


def _offset_in_files(log: TopicLog, time_us: int) -> int:
    end = log.visible_end
    segments = [segment for segment in log.segments if segment.base < end]
    low, high = 0, len(segments)
    while low < high:  # the last segment whose first row is before the time holds the answer, or ends before it
        middle = (low + high) // 2
        first_us = first_time_us(log.context.disk, segments[middle])
        assert first_us is not None  # a segment that begins before the visible end has a row
        if first_us < time_us:
            low = middle + 1
        else:
            high = middle
    if low == 0:
        return segments[0].base if segments else end
    segment = segments[low - 1]
    segment_end = segments[low].base if low < len(segments) else end
    return _offset_in_segment(log, segment, segment_end, time_us)


def _offset_in_segment(log: TopicLog, segment: Segment, end: int, time_us: int) -> int:
    reader = SegmentReader(log.context.disk, segment)
    try:
        reader.seek(end - 1)  # walks the headers once, which fills the index of places
        places = [offset for offset, _ in segment.index if offset < end]
        low, high = 0, len(places)
        while low < high:
            middle = (low + high) // 2
            if _time_at(log, segment, places[middle]) < time_us:
                low = middle + 1
            else:
                high = middle
    finally:
        reader.close()
    return _scan_from(log, segment, places[low - 1] if low else segment.base, end, time_us)


def _time_at(log: TopicLog, segment: Segment, offset: int) -> int:
    reader = SegmentReader(log.context.disk, segment)
    try:
        reader.seek(offset)
        batch = reader.next()
        assert batch is not None
        return int(append_times_us(batch.rows)[0])
    finally:
        reader.close()


def _scan_from(log: TopicLog, segment: Segment, offset: int, end: int, time_us: int) -> int:
    reader = SegmentReader(log.context.disk, segment)
    try:
        reader.seek(offset)
        while reader.offset < end and (batch := reader.next()) is not None:
            times = append_times_us(batch.rows)
            if int(times[-1]) >= time_us:
                return batch.offset + int(np.searchsorted(times, time_us))
    finally:
        reader.close()
    return end

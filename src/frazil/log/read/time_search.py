"""Find a point in time in the segment files of a log."""

from __future__ import annotations

import numpy as np

from frazil.log.read.segment_reader import SegmentReader, append_times_us, first_time_us
from frazil.log.topic_log import TopicLog
from frazil.log.write.segment import Segment


def offset_in_files(log: TopicLog, time_us: int) -> int:
    """Return the first visible offset in the segments that was appended at or after a time, else the visible end."""
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
        reader.seek(end - 1)  # reads all headers once, which fills the index of places
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

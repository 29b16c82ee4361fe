"""The tiers of the log itself, its replay cache and its segment files; and the list of all its tiers."""

from __future__ import annotations

import bisect

import pyarrow as pa

from frazil.core.errors import Closed, CorruptLog
from frazil.core.offsets import OffsetRange, Place
from frazil.core.rows import upgraded, with_offsets
from frazil.core.tiers import Extent, Gone, Tier
from frazil.log.read.segment_reader import SegmentReader, StoredBatch
from frazil.log.read.time_search import offset_in_files
from frazil.log.topic_log import TopicLog
from frazil.log.write.segment import Segment


def tiers_of(log: TopicLog, after: Place | None = None) -> tuple[Tier, ...]:
    """Return all tiers of a log, hottest first. `after` is the table place of an earlier row, if known."""
    colder, table = log.colder, log.colder.table
    if table is None:
        return CacheTier(log), FilesTier(log), *colder.between
    return CacheTier(log), FilesTier(log), *colder.between, table if after is None else table.from_place(after)


class CacheTier:
    """The newest batches, except those too large to cache. It guarantees no range."""

    is_in_memory = True

    def __init__(self, log: TopicLog) -> None:
        self._log = log

    def may_hold(self, offset: int) -> bool:
        return self._log.cache.find(offset) is not None

    def extent(self) -> Extent | None:
        return None

    def find(self, time_us: int) -> int | None:  # noqa: ARG002 - the files hold all cached rows
        return None

    def batches(self, wanted: OffsetRange) -> CachedBatches:
        return CachedBatches(self._log, wanted)


class CachedBatches:
    """Batches from the cache. It ends at the first batch that is not cached."""

    def __init__(self, log: TopicLog, wanted: OffsetRange) -> None:
        self._log = log
        self._end = wanted.end
        self.offset = wanted.start

    def __iter__(self) -> CachedBatches:
        return self

    def __next__(self) -> pa.RecordBatch:
        cached = self._log.cache.find(self.offset)
        if cached is None:
            raise StopIteration
        self._log.context.metrics.read_from_cache()
        start, self.offset = self.offset, min(cached.end, self._end)
        return _cut(self._log, cached.rows(), cached.offset, cached.end, start, self.offset)

    def close(self) -> None:
        pass


class FilesTier:
    """The segments that retention has not removed."""

    is_in_memory = False

    def __init__(self, log: TopicLog) -> None:
        self._log = log

    def may_hold(self, offset: int) -> bool:
        return offset >= self._log.first_offset

    def extent(self) -> Extent:
        return Extent(self._log.first_offset, self._log.visible_end)

    def find(self, time_us: int) -> int | None:
        log = self._log
        while True:
            first = log.first_offset
            try:
                found = offset_in_files(log, time_us)
            except FileNotFoundError as error:
                if log.closed:
                    raise Closed(f"the log of {log.name}") from None
                if log.first_offset == first:
                    raise CorruptLog(str(error.filename), 0, "the segment file is missing") from None
                continue  # retention has removed it meanwhile
            return found if found < log.visible_end else None

    def batches(self, wanted: OffsetRange) -> FileBatches:
        return FileBatches(self._log, wanted)


class FileBatches:
    """Batches from consecutive segments, including one that is still written to."""

    def __init__(self, log: TopicLog, wanted: OffsetRange) -> None:
        self._log = log
        self._end = wanted.end
        self._file: SegmentReader | None = None
        self._file_end = 0
        self.offset = wanted.start

    def __iter__(self) -> FileBatches:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self.offset >= self._end:
            raise StopIteration
        if self.offset < self._log.first_offset:
            raise Gone(self.offset)
        stored = self._stored()
        self._log.context.metrics.read_from_file()
        end = stored.end
        start, self.offset = self.offset, min(end, self._end)
        return _cut(self._log, stored.rows, stored.offset, end, start, self.offset)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _stored(self) -> StoredBatch:
        file = self._file
        if file is None or (self._file_end and self.offset >= self._file_end):
            file = self._opened()
        batch = file.next()
        if batch is None:  # sealed since it was opened, or too short
            file = self._opened()
            batch = file.next()
        if batch is None or not batch.offset <= self.offset < batch.end:
            raise CorruptLog(file.path, file.position, f"offset {self.offset} is not where it belongs")
        return batch

    def _opened(self) -> SegmentReader:
        self.close()
        segment, self._file_end = self._segment()
        try:
            self._file = SegmentReader(self._log.context.disk, segment)
        except FileNotFoundError:
            if self._log.closed:
                raise Closed(f"the log of {self._log.name}") from None
            if self.offset >= self._log.first_offset:
                raise CorruptLog(str(segment.path), 0, "the segment file is missing") from None
            raise Gone(self.offset) from None
        self._file.seek(self.offset)
        return self._file

    def _segment(self) -> tuple[Segment, int]:
        """Return the segment that holds the next offset, and its end (0 if it is still written to)."""
        segments = self._log.segments
        at = bisect.bisect_right(segments, self.offset, key=lambda segment: segment.base) - 1
        if at < 0:
            raise Gone(self.offset)
        return segments[at], segments[at + 1].base if at + 1 < len(segments) else 0


def _cut(log: TopicLog, rows: pa.RecordBatch, first: int, last: int, start: int, end: int) -> pa.RecordBatch:
    """Slice the rows `first` up to `last` to `start` up to `end`, with offsets, in the current schema."""
    if start > first or end < last:
        rows = rows.slice(start - first, end - start)
    return with_offsets(upgraded(rows, log.schema), start)

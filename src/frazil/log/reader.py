"""One reader from any offset: table, files, cache, live tail, without a gap or a double at any seam.

The reader is keyed by its next offset alone. Each step asks the cache first, then the files, then the history that
holds what the files no longer do, so it does not matter what was evicted, rotated or removed between two steps.
"""

from __future__ import annotations

import bisect
import threading

import pyarrow as pa

from frazil.core.errors import Closed, CorruptLog, FrazilError, OffsetOutOfRange, RowsMissing
from frazil.core.offsets import Place
from frazil.core.rows import upgraded, with_offsets
from frazil.log.history import History, HistoryBatches, first_offset
from frazil.log.segment import Segment
from frazil.log.segment_reader import SegmentReader, StoredBatch
from frazil.log.topic_log import TopicLog


class BatchReader:
    """Batches from `start` on, each with its `_offset` column. Not to be shared between threads.

    Without `follow` it ends at `end`, or at what was durable when it was made. With `follow` it waits for
    more, until `end` if there is one, and raises `Closed` when the log is closed under it. `after` is where the table
    has a row before `start`, if the caller knows.
    """

    def __init__(
        self, log: TopicLog, start: int, end: int | None = None, *, follow: bool = False, after: Place | None = None
    ) -> None:
        self._log = log
        self._end = end
        if not follow:
            self._end = log.visible_end if end is None else min(end, log.visible_end)
        self._file: SegmentReader | None = None
        self._file_end = 0
        self._older: HistoryBatches | None = None
        self._older_start = 0
        self._after = after
        self.offset = start

    @property
    def end(self) -> int | None:
        """Where it ends; None if it follows without end."""
        return self._end

    @property
    def finished(self) -> bool:
        return self._end is not None and self.offset >= self._end

    def poll(self, *, cached_only: bool = False) -> pa.RecordBatch | None:
        """The next batch if there is one now; with `cached_only`, if it can be had without the disk."""
        self._log.context.process.check()
        if self.finished or self.offset >= self._log.visible_end:
            return None
        cached = self._log.cache.find(self.offset)
        if cached is not None:
            self.close()
            self._log.context.metrics.read_from_cache()
            return self._deliver(cached.rows(), cached.offset)
        if cached_only:
            return None
        if self.offset >= self._log.first_offset:
            try:
                stored = self._from_files()
            except OffsetOutOfRange:
                if self._log.history is None:
                    raise
            else:
                self._log.context.metrics.read_from_file()
                return self._deliver(stored.rows, stored.offset)
        return self._from_history()

    @property
    def waits(self) -> bool:
        """True if there is nothing to read now, but may be later."""
        return not self.finished and self.offset >= self._log.visible_end

    def __iter__(self) -> BatchReader:
        return self

    def __next__(self) -> pa.RecordBatch:
        while True:
            batch = self.poll()
            if batch is not None:
                return batch
            if self.finished:
                self.close()
                raise StopIteration
            self.wait()

    def wait(self, timeout_ms: int | None = None) -> None:
        """Return when there may be more, or the time is over; `Closed` if there never will be."""
        self._log.context.process.check()
        event = threading.Event()
        self._log.tail.add(event.set)
        try:
            if self.waits:
                if self._log.closed:
                    raise Closed(f"the log of {self._log.name}")
                event.wait(None if timeout_ms is None else timeout_ms / 1_000)
        finally:
            self._log.tail.discard(event.set)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._older is not None:
            self._older.close()
            self._older = None

    def _deliver(self, rows: pa.RecordBatch, first: int) -> pa.RecordBatch:
        """Only the rows asked for, under the topic's present schema."""
        skip = self.offset - first
        count = rows.num_rows - skip
        if self._end is not None:
            count = min(count, self._end - self.offset)
        if skip or count < rows.num_rows:
            rows = rows.slice(skip, count)
        batch = with_offsets(upgraded(rows, self._log.schema), self.offset)
        self.offset += count
        return batch

    def _from_history(self) -> pa.RecordBatch | None:
        """The next rows that the files no longer have.

        Only as far as the files begin now: what is removed meanwhile is asked for when the reader gets there.
        """
        if self._log.history is None:
            raise self._gone(self.offset)
        if self._older is None:
            self.close()
            first = self._log.first_offset
            end = first if self._end is None else min(first, self._end)
            self._older = self._log.history.read(self.offset, end, self._log.schema, after=self._after)
            self._older_start = self.offset
        try:
            batch = next(self._older, None)
        except BaseException:
            self.close()
            raise
        self.offset = max(self.offset, self._older.offset)
        if batch is None:
            self.close()
            if self.offset == self._older_start:
                raise self._nowhere(self._log.history)
            return self.poll()
        self._log.context.metrics.read_from_table()
        return batch

    def _from_files(self) -> StoredBatch:
        if self._file is not None and self.offset >= self._file_end and self._file_end:
            self.close()
        if self._file is None or self._file.offset != self.offset:
            self._open_at(self.offset)
        assert self._file is not None
        batch = self._file.next()
        if batch is None:  # sealed since it was opened, or shorter than it must be
            self._open_at(self.offset)
            batch = self._file.next()
        if batch is None or not batch.offset <= self.offset < batch.end:
            raise CorruptLog(self._file.path, self._file.position, f"offset {self.offset} is not where it belongs")
        return batch

    def _open_at(self, offset: int) -> None:
        self.close()
        segment, self._file_end = self._segment_of(offset)
        try:
            self._file = SegmentReader(self._log.context.disk, segment)
        except FileNotFoundError:
            if offset >= self._log.first_offset:
                raise CorruptLog(str(segment.path), 0, "the segment file is missing") from None
            raise self._gone(offset) from None
        self._file.seek(offset)

    def _segment_of(self, offset: int) -> tuple[Segment, int]:
        """The segment that holds an offset, and where it ends (0 if it is still growing)."""
        segments = self._log.segments
        at = bisect.bisect_right(segments, offset, key=lambda segment: segment.base) - 1
        if at < 0:
            raise self._gone(offset)
        return segments[at], segments[at + 1].base if at + 1 < len(segments) else 0

    def _nowhere(self, history: History) -> FrazilError:
        """Neither tier has the next row: it was never there for us, or it is lost."""
        span, first = history.span(), self._log.first_offset
        if span is None or self.offset < span.start:
            return self._gone(self.offset)
        return RowsMissing(str(self._log.name), history.table, self.offset, first)

    def _gone(self, offset: int) -> OffsetOutOfRange:
        return OffsetOutOfRange(str(self._log.name), offset, first_offset(self._log), self._log.visible_end)

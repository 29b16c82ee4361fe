"""A reader from any offset across table, files, cache and live tail, without gaps or duplicates between tiers."""

from __future__ import annotations

import threading

import pyarrow as pa

from frazil.core.errors import Closed, FrazilError, OffsetOutOfRange, RowsMissing
from frazil.core.offsets import Place
from frazil.core.tiers import Gone, TierWalk, first_offset
from frazil.log.read.tiers import tiers_of
from frazil.log.topic_log import TopicLog


class BatchReader(TierWalk):
    """Batches from `start` on, each with its `_offset` column. Not thread-safe.

    Without `follow` it ends at `end`, or at the durable end when it was created. With `follow` it waits for more, until
    `end` if given, and raises `Closed` when the log is closed. `after` is the table place of a row before `start`, if
    the caller knows it.
    """

    def __init__(
        self, log: TopicLog, start: int, end: int | None = None, *, follow: bool = False, after: Place | None = None
    ) -> None:
        if not follow:
            end = log.visible_end if end is None else min(end, log.visible_end)
        super().__init__(tiers_of(log, after), start, end)
        self._log = log

    def poll(self, *, cached_only: bool = False) -> pa.RecordBatch | None:
        """Return the next batch if there is one now; with `cached_only`, only if it needs no disk."""
        self._log.context.process.check()
        try:
            return self.step(in_memory_only=cached_only)
        except Gone:
            raise self._nowhere() from None

    @property
    def waits(self) -> bool:
        """Whether there is nothing to read now, but may be later."""
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
        """Return when there may be more, or on timeout; raises `Closed` if there never will be."""
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

    def _is_at_end(self) -> bool:
        end = self._end
        return self.offset >= self._log.visible_end or (end is not None and self.offset >= end)

    def _nowhere(self) -> FrazilError:
        """Return the error for a row that no tier has: it was removed, or it is lost."""
        log, history = self._log, self._log.history
        first = first_offset(self._tiers, log.visible_end)
        if history is None or self.offset < first:
            return OffsetOutOfRange(str(log.name), self.offset, first, log.visible_end)
        return RowsMissing(str(log.name), history.table, self.offset, log.first_offset)

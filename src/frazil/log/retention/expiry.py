"""Time-based work of a log: seal a segment at its maximum age, and remove rows past their retention.

`TopicLog` combines this with the write path. The guards are asked between `has_expired` and `remove_expired`, without
holding a lock.
"""

from __future__ import annotations

import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

from frazil.core.errors import FrazilError, LogFailed
from frazil.core.settings import RetentionSettings
from frazil.log.context import LogContext
from frazil.log.folder.catalog import TopicRecorder
from frazil.log.format.records import ignore_full_disk, temporary_disk_errors
from frazil.log.retention.dropped import DroppedRange
from frazil.log.retention.guards import Allowed, RetentionHold
from frazil.log.retention.policy import Removal, learn_times, removable
from frazil.log.write.segment import Segment, SegmentWriter, SyncFailed


class ExpiringLog(ABC):
    context: LogContext
    retention: RetentionSettings
    removal: Removal
    segments: tuple[Segment, ...]
    durable_end: int
    held_back: RetentionHold | None = None
    """Why rows past their retention are kept, by the last answer of the guards."""
    failed: FrazilError | None
    closed: bool
    _folder: Path
    _recorder: TopicRecorder
    _io: threading.Lock
    _last_time_us: int
    _writer: SegmentWriter | None

    @property
    @abstractmethod
    def written_end(self) -> int: ...

    @abstractmethod
    def _must_rotate(self, writer: SegmentWriter, payload_bytes: int, now_us: int) -> bool: ...

    @abstractmethod
    def _seal(self) -> None: ...

    @abstractmethod
    def _writer_for(self, payload_bytes: int, now_us: int) -> SegmentWriter: ...

    @abstractmethod
    def _fail(self, reason: str) -> LogFailed: ...

    def maintain(self) -> int:
        """Seal an old segment, and retry a failed removal; returns the bytes removed."""
        with self._io:
            if self.failed is not None or self.closed:
                return 0
            with self._sync_may_fail(), ignore_full_disk():
                if self._writer is not None and self._must_rotate(self._writer, 0, self.context.clock.now_us()):
                    self._seal()
            return self.removal.finish()

    @property
    def is_idle(self) -> bool:
        """Whether time has no effect on the log: it has no segments, and none being removed. Takes no lock."""
        return not self.segments and self._writer is None and not self.removal.going

    def has_expired(self) -> bool:
        """Whether retention would remove rows if every guard agreed."""
        with self._io:
            return bool(self._expired(self.durable_end))

    def remove_expired(self, allowed: Allowed) -> int:
        """Record the removal and the new beginning of the log, then remove what the guards allow; returns the bytes."""
        with self._io:
            unchanged = allowed.retention == self.retention  # otherwise the guards were asked about another policy
            going = self._expired(allowed.floor) if unchanged else []
            if going and going[-1] is self.segments[-1] and not self._rolled_empty():
                going.pop()
            if going:
                kept = self.segments[len(going) :]
                self.removal.begin(going, kept[0].base, self.retention, self._last_time_us, in_table=allowed.in_table)
                self.segments = kept
            return self.removal.finish()

    def record_dropped(self, dropped: DroppedRange) -> None:
        """Record, durably, that a colder tier loses rows that no other tier holds."""
        with self._io:
            self.removal.dropped = self._recorder.record_dropped(dropped)

    def _expired(self, floor: int) -> list[Segment]:
        """The last segment ends at its written end: rows that are not durable yet must not be removed with it."""
        if self.failed is not None or self.closed:
            return []
        if self.retention.age_ms is not None:
            learn_times(self.context.disk, self.segments, self._last_time_us)
        return removable(self.segments, self.written_end, self.retention, self.context.clock.now_us(), floor)

    def _rolled_empty(self) -> bool:
        """Replace the last segment by an empty one, which keeps the next offset, before it is removed."""
        before = self.segments[-1]
        with self._sync_may_fail(), ignore_full_disk():
            self._recorder.with_spare_room(self._roll_empty)
        return self.segments[-1] is not before

    def _roll_empty(self) -> None:
        with temporary_disk_errors(self._folder):
            if self._writer is not None:
                self._seal()
            self._writer_for(0, self._last_time_us)

    @contextlib.contextmanager
    def _sync_may_fail(self) -> Iterator[None]:
        try:
            yield
        except SyncFailed as error:
            raise self._fail(str(error)) from error

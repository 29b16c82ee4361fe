"""The upload of one log: what comes next, what is in flight, and the last error.

    look     compare the log with its objects, and begin an epoch if there is something to upload
    take     return the next piece; several may be on their way at once
    done, failed

A piece whose outcome is unknown is repeated with the same bytes, before any further one is cut.
"""

from __future__ import annotations

import bisect
import threading
from collections import deque
from dataclasses import dataclass

from frazil.core.backoff import backoff, jittered
from frazil.core.clock import Clock
from frazil.core.disk import Disk
from frazil.core.errors import FrazilError, LogFenced, ObjectsAhead, ObjectsDiffer
from frazil.core.settings.objects import ObjectsSettings
from frazil.core.stored_objects import StoredObject
from frazil.log.read.segment_reader import SegmentReader, append_times_us
from frazil.log.topic_log import TopicLog
from frazil.objects.epoch import Epoch, EpochClaim, begin_epoch
from frazil.objects.known import KnownLog
from frazil.objects.reading import ObjectReader
from frazil.objects.upload.cutting import SegmentCutter, SegmentPiece

AGAIN_MS_MIN, AGAIN_MS_MAX = 200, 30_000


@dataclass(frozen=True, slots=True)
class UploadJob:
    """A piece on its way to the store. Its bytes never change: `stored` is part of them."""

    piece: SegmentPiece
    stored: int
    epoch: Epoch
    disk: Disk


class LogUpload:
    """Thread-safe."""

    def __init__(
        self,
        log: TopicLog,
        known: KnownLog,
        owner: EpochClaim,
        settings: ObjectsSettings,
        clock: Clock,
        *,
        begins_epochs: bool = True,
        former: LogUpload | None = None,
    ) -> None:
        """Without `begins_epochs`, nothing is uploaded before `attach`: somebody else decides who owns the log.

        `former` is the upload of the log before it was closed and opened again. What it had on its way comes first.
        """
        self.log = log
        self._former = former
        self._has_begun = False
        self.known = known
        self._owner = owner
        self._claim = EpochClaim(owner.owner, owner.address)
        self._begins_epochs = begins_epochs
        self._settings = settings
        self._clock = clock
        self._guard = threading.Lock()
        self._again: deque[UploadJob] = deque()
        self._on_way = 0
        self._cutter: SegmentCutter | None = None
        self._next: int | None = None
        """Where the next piece begins; None if the objects were not looked at yet."""
        self._failures = 0
        self._not_before_us = 0
        self._interval_us = clock.monotonic_us()
        self._wanted_end = 0
        self._is_same = False
        self.epoch: Epoch | None = None
        self.error: Exception | None = None
        """The error of the last attempt; None after a success."""
        self.since_us = 0

    @property
    def end(self) -> int | None:
        """Return the end of the uploaded rows; None if unknown."""
        if self.epoch is not None:
            return self.epoch.end
        known = self.known.now()
        return self._next if known is None else known.end

    @property
    def fenced(self) -> LogFenced | None:
        return self.error if isinstance(self.error, LogFenced) else None

    @property
    def checked_end(self) -> int:
        """Return the end of the uploaded rows, as far as they were compared with the log."""
        return self.epoch.end if self.epoch is not None else self._next or 0

    @property
    def is_busy(self) -> bool:
        """Whether a piece is on its way."""
        former = self._former
        return self._on_way > 0 or (former is not None and former.is_busy)

    @property
    def unfinished(self) -> LogUpload | None:
        """Return what the next upload of the log has to follow, if any piece was ever taken."""
        return self if self._has_begun else self._former

    def check_same(self) -> None:
        """Raise `ObjectsDiffer` if the newest row of the objects is not that of the log. It is compared once."""
        with self._guard:
            if self.epoch is None and not self._is_same:
                objects = self.known.load()
                last = objects.last
                if last is not None and last.end <= self.log.durable_end and not self._continues(last):
                    raise ObjectsDiffer(str(self.log.name), objects.end)
                self._is_same = True

    def attach(self, epoch: Epoch) -> None:
        """Store objects in an epoch that was begun for the log as it is now."""
        with self._guard:
            if self.epoch is not epoch:
                self.epoch, self._next, self._cutter = epoch, epoch.end, None

    def want(self, end: int) -> None:
        """Upload up to `end`, whether the segment is sealed or not, without waiting for a back-off."""
        with self._guard:
            self._wanted_end = max(self._wanted_end, end)
            self._not_before_us = 0
            self.error = self.fenced

    def is_due(self) -> bool:
        """Whether a worker should take it. Takes no lock and makes no call."""
        if self.epoch is None and not self._begins_epochs:
            return False
        if self.fenced is not None or self.log.closed or self._clock.monotonic_us() < self._not_before_us:
            return False
        former = self._former
        if former is not None and former.is_busy:
            return False
        if self._again:
            return True
        return (self._next or 0) < self._target() and (self._next is not None or self.log.durable_end > 0)

    def take(self) -> UploadJob | None:
        """Return the next piece, if there is one. Blocks on the store when it begins an epoch."""
        with self._guard:
            self._has_begun = True
            if not self.is_due() or not self._follows_former():
                return None
            if self._again:
                self._on_way += 1
                return self._again.popleft()
            if not self._is_ready():
                return None
            assert self.epoch is not None
            piece = self._cut(self._target())
            if piece is None:
                return None
            self._next = piece.end
            self._on_way += 1
            return UploadJob(piece, self.epoch.end, self.epoch, self.log.context.disk)

    def done(self) -> None:
        with self._guard:
            self._on_way -= 1
            if not self._again:
                self._failures, self.error = 0, None

    def failed(self, error: Exception, job: UploadJob | None = None) -> bool:
        """Note a failure; the next attempt waits. Returns whether it is another failure than before."""
        with self._guard:
            if job is not None:
                self._on_way -= 1
                self._again.append(job)
            else:
                self._cutter = None
            is_new = type(self.error) is not type(error)
            if is_new:
                self.since_us = self._clock.now_us()
            self.error = error
            if self._clock.monotonic_us() < self._not_before_us:
                return is_new  # it was on its way together with another piece that failed
            self._failures += 1
            delay_ms = jittered(backoff(self._failures, first=AGAIN_MS_MIN, limit=AGAIN_MS_MAX))
            self._not_before_us = self._clock.monotonic_us() + int(delay_ms * 1_000)
            return is_new

    def _follows_former(self) -> bool:
        """Go on in the epoch of the former upload where that has stopped, once nothing of it is on its way.

        What it has put without an answer may be in the store: the same names need the same bytes.
        """
        former = self._former
        if former is None:
            return True
        with former._guard:
            if former._on_way or not former._follows_former():
                return False
            if former.epoch is not None and former.epoch.fenced is None and self.epoch in (None, former.epoch):
                self.epoch, self._next, self._again = former.epoch, former._next, former._again
        self._former = None
        return True

    def _target(self) -> int:
        """Return the end of what is to be uploaded now: that of the sealed segments, or of all that is durable."""
        segments, durable = self.log.segments, self.log.durable_end
        end = durable if not segments or segments[-1].sealed else segments[-1].base
        interval_ms = self._settings.open_interval_ms
        if interval_ms is not None and self._clock.monotonic_us() - self._interval_us >= interval_ms * 1_000:
            end = durable
        return min(durable, max(end, self._wanted_end))

    def _is_ready(self) -> bool:
        """Whether there is an epoch that ends where the log goes on; begins one if rows are missing in the store."""
        first = self.log.first_offset
        if self.epoch is not None and self._next is not None and self._next >= first:
            return True
        if self.epoch is None and self._next is None:
            recorded = None if self.known.manifests is None else self.known.manifests.of(self.log.log_id)
            if recorded and self._target() <= recorded[-1].end <= self.log.durable_end:
                self._next = recorded[-1].end  # the usual case of a quiet topic: no request to the store
                return False
        if self._on_way:
            return False
        objects = self.known.refresh()
        if objects.end > self.log.durable_end:
            raise ObjectsAhead(str(self.log.name), objects.end, self.log.durable_end)
        if (last := objects.last) is not None and not self._continues(last):
            raise ObjectsDiffer(str(self.log.name), objects.end)
        if self.epoch is None and last is not None and objects.end >= self._target():
            self._next = objects.end
            return False
        self.epoch = begin_epoch(self.known, str(self.log.name), self._claim, self._clock, first=first)
        self._claim = EpochClaim(self._owner.owner, self._owner.address)
        self._next, self._cutter = self.epoch.end, None
        if self._next > self.log.durable_end:
            raise ObjectsAhead(str(self.log.name), self._next, self.log.durable_end)
        return True

    def _continues(self, last: StoredObject) -> bool:
        """Whether the newest row of the objects is that of the log: a copy of its folder may have stored others."""
        offset = last.end - 1
        if offset < self.log.first_offset:
            return True
        stored_us = last.last_time_us
        if stored_us is None:
            reader = ObjectReader(self.known.store, (last,), last.first)
            stored_us = int(append_times_us([batch.rows for batch in reader][-1])[-1])
        at = bisect.bisect_right(self.log.segments, offset, key=lambda segment: segment.base) - 1
        rows = SegmentReader(self.log.context.disk, self.log.segments[at])
        try:
            rows.seek(offset)
            batch = rows.next()
            assert batch is not None
            return int(append_times_us(batch.rows)[offset - batch.offset]) == stored_us
        finally:
            rows.close()

    def _cut(self, target: int) -> SegmentPiece | None:
        segments, bytes_max = self.log.segments, self._settings.object_bytes_max
        assert self._next is not None
        at = bisect.bisect_right(segments, self._next, key=lambda segment: segment.base) - 1
        if at < 0 or self._next >= target:
            return None
        segment = segments[at]
        if self._cutter is None or self._cutter.base != segment.base:
            self._cutter = None
            cutter = SegmentCutter(self.log.context.disk, segment, self.log.log_id)
            cutter.skip_to(self._next, bytes_max)
            self._cutter = cutter
        end = min(target, segments[at + 1].base if at + 1 < len(segments) else target)
        piece = self._cutter.next(end, bytes_max)
        if piece is not None and piece.end >= target and not segment.sealed:
            self._interval_us = self._clock.monotonic_us()
        return piece


def reason_of(error: Exception) -> str:
    return error.message if isinstance(error, FrazilError) else str(error) or repr(error)

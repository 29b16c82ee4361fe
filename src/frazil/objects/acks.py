"""The object store as topics with ack level `object` use it: one epoch for each log, begun when the log is opened.

AckedLogs    the logs of a storage: takes them over, and has the threads for their requests
AckedLog     the objects of one log, in the epoch that this process began
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from frazil.core.clock import Clock
from frazil.core.disk import Disk
from frazil.core.errors import ObjectStoreUnavailable, TryLater
from frazil.core.names import TopicName
from frazil.core.settings import MIB, AckLevel
from frazil.core.settings.objects import ObjectsSettings
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.format.records import open_to_read
from frazil.log.write.segment import Segment
from frazil.log.write.stored_groups import CLOSE_SECONDS_MAX, FrameGroup
from frazil.objects.epoch import Epoch, EpochClaim, begin_epoch
from frazil.objects.known import KnownLog, ObjectsOfLogs
from frazil.objects.packing import pack_object
from frazil.objects.recovery import continuation
from frazil.objects.upload.cutting import SegmentCutter, SegmentPiece

THREADS_MAX = 32
"""Requests of all logs at once."""
TAIL_BYTES = 8 * MIB
"""Rows of the files that are not stored yet become objects of this size."""
RECORD_INTERVAL_US = 1_000_000
"""Manifests are stored at this interval: a listing of the store does without them. One thread stores them, so that no
acknowledgement waits for the metadata store."""

_log = logging.getLogger("frazil.objects")


class AckedLogs:
    """See `frazil.log.write.stored_groups.GroupStores`. Thread-safe."""

    def __init__(
        self,
        settings: ObjectsSettings,
        objects: Callable[[], ObjectsOfLogs],
        claim: Callable[[], EpochClaim],
        clock: Clock,
    ) -> None:
        """`objects` is called on first use: it opens the store."""
        self.gather_ms = settings.gather_ms
        self.gather_bytes_max = settings.gather_bytes_max
        self.in_flight_max = settings.parallel_max
        self.ack_timeout_ms = settings.ack_timeout_ms
        self.close_seconds_max = CLOSE_SECONDS_MAX
        self._objects = objects
        self._claim = claim
        self._clock = clock
        self._guard = threading.Lock()
        self._taking: dict[str, threading.Lock] = {}
        self._taken: dict[str, AckedLog] = {}
        self._leaving: list[AckedLog] = []
        self._threads: ThreadPoolExecutor | None = None
        self._recorder: ThreadPoolExecutor | None = None

    def take_over(self, log_id: str, name: TopicName, first: int = 0) -> AckedLog:
        with self._guard:
            taking = self._taking.setdefault(log_id, threading.Lock())
        with taking:  # requests for one log do not wait for those for another
            with self._guard:
                taken = self._taken.get(log_id)
            if taken is None:
                known = self._objects().of(log_id)
                begins = first or None
                claim = self._claim()
                epoch = begin_epoch(known, str(name), claim, self._clock, first=begins, ack=AckLevel.OBJECT)
                taken = AckedLog(epoch, known, self._clock, self)
                with self._guard:
                    self._taken[log_id] = taken
            return taken

    def taken(self, log_id: str) -> AckedLog | None:
        with self._guard:
            return self._taken.get(log_id)

    def release(self, log_id: str) -> None:
        with self._guard:
            taken = self._taken.pop(log_id, None)
            self._taking.pop(log_id, None)
        if taken is not None:
            taken.close()
            with self._guard:
                self._leaving = [one for one in (*self._leaving, taken) if one.is_busy]

    def is_busy(self, log_id: str) -> bool:
        """Whether a put for a log that was released may still be on its way."""
        with self._guard:
            return any(one.log_id == log_id and one.is_busy for one in self._leaving)

    def submit(self, job: Callable[[], None]) -> None:
        with self._guard:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(THREADS_MAX, "frazil-acks")
            self._threads.submit(job)

    def submit_record(self, job: Callable[[], None]) -> None:
        """Run a job in the thread that stores manifests."""
        with self._guard:
            if self._recorder is None:
                self._recorder = ThreadPoolExecutor(1, "frazil-acks-manifests")
            self._recorder.submit(job)

    def close(self) -> None:
        """End the threads. The logs are closed: what still waits for a thread was answered."""
        with self._guard:
            pools = [self._threads, self._recorder]
        for pool in pools:
            if pool is not None:
                pool.shutdown(cancel_futures=True)


class AckedLog:
    """See `frazil.log.write.stored_groups.GroupStore`."""

    def __init__(self, epoch: Epoch, known: KnownLog, clock: Clock, logs: AckedLogs) -> None:
        self._logs = logs
        self._epoch = epoch
        self._known = known
        self._clock = clock
        self._records = False
        self._recorded_us = clock.monotonic_us()
        self._guard = threading.Lock()
        self._on_way = 0
        self._closed = False
        self.log_id = epoch.log_id
        self.epoch = epoch.number

    @property
    def is_busy(self) -> bool:
        return self._on_way > 0

    @property
    def end(self) -> int:
        return self._epoch.end

    @property
    def refused_at(self) -> int | None:
        return self._epoch.refused_at

    def first_of_others(self, start: int, epoch: int) -> int | None:
        for one in self._epoch.objects.all():
            if one.epoch > epoch and one.end > start:
                return max(start, one.first)
        return None

    def pack(self, group: FrameGroup) -> bytes:
        place = group.first, group.end, group.head, group.producers, group.frames
        return b"".join(pack_object(*place, stored=self._epoch.end))

    def put(self, group: FrameGroup, content: bytes) -> None:
        with self._guard:
            if self._closed:
                raise ObjectStoreUnavailable(self.log_id, "the log is closed")
            self._on_way += 1
        try:
            times_us = group.first_time_us, group.last_time_us
            self._epoch.put(group.first, group.end, content, *times_us, record=False)
            self._logs.close_seconds_max = CLOSE_SECONDS_MAX
        finally:
            with self._guard:
                self._on_way -= 1
        self._record_sometimes()

    def look(self) -> None:
        self._epoch.look()

    def tail(self, disk: Disk, segments: Sequence[Segment], end: int) -> Iterator[FrameGroup]:
        return _Tail(disk, segments, self.log_id, self._epoch.end, end)

    def continuation(self) -> AdoptedLog:
        return continuation(self._known.store, self._epoch.log_id, self._epoch.objects.all(), self._epoch.end)

    def close(self) -> None:
        """Release the log: the next opening in this process takes it over again."""
        with self._guard:
            self._closed = True
        self._known.epoch = None
        self._epoch.record()

    def _record_sometimes(self) -> None:
        """Store manifests now and then: one request for many."""
        now_us = self._clock.monotonic_us()
        with self._guard:
            if self._closed or self._records or now_us - self._recorded_us < RECORD_INTERVAL_US:
                return
            self._records, self._recorded_us = True, now_us
        self._logs.submit_record(self._record)

    def _record(self) -> None:
        try:
            if not self._closed:
                self._epoch.record()
        except Exception:  # noqa: BLE001 - its rows are stored; the next time stores these manifests too
            _log.exception("manifests of %s could not be stored", self._epoch.topic)
        finally:
            self._records = False


class _Tail:
    """See `GroupStore.tail`."""

    def __init__(self, disk: Disk, segments: Sequence[Segment], log_id: str, start: int, end: int) -> None:
        self._disk = disk
        self._segments = segments
        self._log_id = log_id
        self._next, self._end = start, end
        self._pieces = self._cut()

    def __iter__(self) -> Iterator[FrameGroup]:
        return self

    def __next__(self) -> FrameGroup:
        try:
            piece = next(self._pieces)
            group = _group(self._disk, piece)
        except TryLater:
            self._pieces = self._cut()
            raise
        self._next = piece.end
        return group

    def _cut(self) -> Iterator[SegmentPiece]:
        start = self._next
        for at, segment in enumerate(self._segments):
            segment_end = self._segments[at + 1].base if at + 1 < len(self._segments) else self._end
            if segment_end <= start:
                continue
            cutter = SegmentCutter(self._disk, segment, self._log_id)
            cutter.skip_to(max(start, segment.base), TAIL_BYTES)
            while (piece := cutter.next(segment_end, TAIL_BYTES)) is not None:
                yield piece


def _group(disk: Disk, piece: SegmentPiece) -> FrameGroup:
    file = open_to_read(disk, piece.path)
    try:
        frames = [bytes(file.read(stop - start, start)) for start, stop in piece.runs]
    finally:
        file.close()
    place = piece.first, piece.end, piece.head, piece.producers
    return FrameGroup(*place, frames, piece.first_time_us, piece.last_time_us)

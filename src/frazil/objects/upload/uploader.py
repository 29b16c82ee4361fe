"""Upload the logs of a storage: sealed segments, and at an interval the durable rows of open ones.

    scanner    one thread that finds logs with something to upload
    workers    at most `parallel_max` threads; each uploads one piece at a time, of whichever log is next

Publishing never waits for an upload: pieces are read from the files. A log whose upload fails waits alone, with
back-off. What a killed process had on its way is found in the store, or uploaded again.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from frazil.core.clock import Clock
from frazil.core.errors import FrazilError, LogFenced, ObjectStoreUnavailable, TryLater
from frazil.core.names import TopicName
from frazil.core.settings import AckLevel
from frazil.core.settings.objects import ObjectsSettings
from frazil.log.topic_log import TopicLog
from frazil.objects.epoch import Epoch, EpochClaim
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.upload.bandwidth import Bandwidth
from frazil.objects.upload.log_upload import LogUpload, UploadJob, reason_of

SCAN_SECONDS, SCAN_SECONDS_MIN = 0.5, 0.05
SCAN_SHARE = 20
"""The scanner pauses for 20 times the duration of its last scan of all logs."""
STOP_SECONDS_MAX = 5.0
FINISH_SECONDS_MAX = 300.0

_log = logging.getLogger("frazil.objects")


@dataclass(slots=True)
class UploadCounts:
    """Since the start of the process."""

    objects: int = 0
    bytes: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class UploadProblem:
    topic: str
    error: Exception
    since_us: int

    @property
    def code(self) -> str:
        return self.error.code if isinstance(self.error, FrazilError) else "internal"

    @property
    def message(self) -> str:
        return reason_of(self.error)


class Uploader:
    """Thread-safe. It starts no thread before `start`, or a `finish`."""

    def __init__(
        self,
        objects: ObjectsOfLogs,
        settings: ObjectsSettings,
        owner: EpochClaim,
        clock: Clock,
        logs: Callable[[], Iterable[TopicLog]],
        *,
        begins_epochs: bool = True,
    ) -> None:
        """`logs` returns those that are uploaded; `owner` is how other processes see this one."""
        self._objects = objects
        self._settings = settings
        self._owner = owner
        self._clock = clock
        self._logs = logs
        self._bandwidth = Bandwidth(settings.bytes_per_second_max, clock)
        self._changed = threading.Condition()
        self._uploads: dict[str, LogUpload] = {}
        self._ready: deque[LogUpload] = deque()
        self._queued: set[str] = set()
        self._leaving: list[LogUpload] = []
        self._threads: list[threading.Thread] = []
        self._stopping = threading.Event()
        self._begins_epochs = begins_epochs
        self.counts = UploadCounts()
        self.on_fenced: Callable[[TopicName, LogFenced], None] = lambda _topic, _error: None
        """Called by a worker when another process has taken a log over."""

    def start(self) -> None:
        with self._changed:
            if self._threads or self._stopping.is_set():
                return
            workers = [(self._work, f"frazil-upload-{number}") for number in range(self._settings.parallel_max)]
            for run, name in [(self._scan, "frazil-upload"), *workers]:
                thread = threading.Thread(target=run, name=name, daemon=True)
                self._threads.append(thread)
                thread.start()

    def stop(self) -> None:
        """Stop soon: a request that hangs is abandoned, and the next process finds out what became of it."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
            threads = list(self._threads)
        until_us = self._clock.monotonic_us() + int(STOP_SECONDS_MAX * 1e6)
        for thread in threads:
            thread.join(max(0.0, (until_us - self._clock.monotonic_us()) / 1e6))

    def upload_of(self, log: TopicLog) -> LogUpload:
        """Return the upload of a log, which is made on first use.

        A caller that still has the log from before it was closed and opened again does not take the place of the new
        one: that would lose the epoch in which it is uploaded.
        """
        with self._changed:
            found = self._uploads.get(log.log_id)
            if found is not None and found.log is log:
                return found
            known = self._objects.of(log.log_id)
            former = None if found is None else found.unfinished
            place = log, known, self._owner, self._settings, self._clock
            made = LogUpload(*place, begins_epochs=self._begins_epochs, former=former)
            if found is None or not log.closed:
                self._uploads[log.log_id] = made
            return made

    def attach(self, log: TopicLog, epoch: Epoch) -> None:
        """Upload a log in an epoch that was begun for it; see `LogUpload.attach`."""
        self.upload_of(log).attach(epoch)

    def finish(self, log: TopicLog, seconds_max: float = FINISH_SECONDS_MAX) -> int:
        """Upload everything that is durable now, and return its end. Raises what prevents it."""
        if log.ack is AckLevel.OBJECT:
            return log.sync()
        end, upload = log.flush(), self.upload_of(log)
        self.start()
        upload.want(end)
        until_us = self._clock.monotonic_us() + int(seconds_max * 1e6)
        with self._changed:
            while upload.checked_end < end:
                if upload.error is not None and (upload.fenced or not isinstance(upload.error, TryLater)):
                    raise upload.error
                left = (until_us - self._clock.monotonic_us()) / 1e6
                if left <= 0 or self._stopping.is_set():
                    why = f"uploaded up to {upload.checked_end} of {end} in {seconds_max:g} s"
                    raise upload.error or ObjectStoreUnavailable(str(log.name), why)
                self._add(upload)
                self._changed.wait(min(left, SCAN_SECONDS))
        return end

    def forget(self, log_id: str) -> None:
        """Forget a log that was deleted, or that has another owner now."""
        with self._changed:
            upload = self._uploads.pop(log_id, None)
            self._leaving = [one for one in (*self._leaving, upload) if one is not None and one.is_busy]
        self._objects.forget(log_id)

    def is_busy(self, log_id: str) -> bool:
        """Whether a request for a log that was forgotten may still be on its way."""
        with self._changed:
            return any(one.log.log_id == log_id and one.is_busy for one in self._leaving)

    def problems(self) -> list[UploadProblem]:
        """Return the logs whose last attempt failed."""
        with self._changed:
            uploads = list(self._uploads.values())
        failed = [(one, one.error) for one in uploads if not one.log.closed]
        return sorted(
            (UploadProblem(str(one.log.name), error, one.since_us) for one, error in failed if error is not None),
            key=lambda problem: problem.topic,
        )

    def _scan(self) -> None:
        interval_ms = self._settings.open_interval_ms
        seconds = SCAN_SECONDS if interval_ms is None else max(SCAN_SECONDS_MIN, min(SCAN_SECONDS, interval_ms / 1_000))
        while not self._stopping.is_set():
            began_us = self._clock.monotonic_us()
            try:
                due = [upload for log in self._logs() if (upload := self.upload_of(log)).is_due()]
                with self._changed:
                    for upload in due:
                        self._add(upload)
            except FrazilError as error:  # the storage is being closed
                _log.debug("no logs to upload: %s", error)
            took = (self._clock.monotonic_us() - began_us) / 1e6
            self._stopping.wait(max(seconds, SCAN_SHARE * took))

    def _add(self, upload: LogUpload) -> None:
        """Let a worker take the log. The caller holds `_changed`."""
        if upload.log.log_id not in self._queued and upload.is_due():
            self._queued.add(upload.log.log_id)
            self._ready.append(upload)
            self._changed.notify_all()

    def _work(self) -> None:
        while (upload := self._next()) is not None:
            job: UploadJob | None = None
            try:
                job = upload.take()
                if job is not None:
                    with self._changed:
                        self._add(upload)  # another worker may take its next piece meanwhile
                    self._put(job)
                    upload.done()
            except Exception as error:  # noqa: BLE001 - one log must not end the upload of the others; it is reported
                self._note(upload, error, job)
            with self._changed:
                if job is not None:  # otherwise the scanner looks again
                    self._add(upload)
                self._changed.notify_all()

    def _next(self) -> LogUpload | None:
        with self._changed:
            while not self._ready:
                if self._stopping.is_set():
                    return None
                self._changed.wait()
            if self._stopping.is_set():
                return None
            upload = self._ready.popleft()
            self._queued.discard(upload.log.log_id)
            return upload

    def _put(self, job: UploadJob) -> None:
        piece, epoch = job.piece, job.epoch
        content = piece.content(job.disk, job.stored)
        if self._stopping.wait(self._bandwidth.take(len(content))):
            raise ObjectStoreUnavailable(epoch.log_id, "the upload is being stopped")
        epoch.put(piece.first, piece.end, content, piece.first_time_us, piece.last_time_us)
        with self._changed:
            self.counts.objects += 1
            self.counts.bytes += len(content)

    def _note(self, upload: LogUpload, error: Exception, job: UploadJob | None) -> None:
        if upload.log.closed or self._stopping.is_set():
            upload.failed(error, job)
            return
        with self._changed:
            self.counts.failures += 1
        if isinstance(error, LogFenced):
            self.on_fenced(upload.log.name, error)
        if upload.failed(error, job):
            trace = None if isinstance(error, FrazilError | OSError) else error
            _log.warning(
                "the upload of %s failed, and is retried: %s", upload.log.name, reason_of(error),
                exc_info=trace, extra={"topic": str(upload.log.name)},
            )  # fmt: skip

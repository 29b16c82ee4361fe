"""The log of one topic: group commit on one side, readers on the other.

Appenders put rows into a queue, and an appender that finds no running commit requests one from the pool. Only threads
of the pool touch the files of a commit: a caller's thread may be interrupted (Ctrl-C) between any two steps. While the
disk syncs, the next group accumulates, so grouping costs no latency. A group is one frame: one write, one sync. At a
crash in sync mode `always` there is therefore at most one unacknowledged frame.

Locks, always taken in this order: `_turn` (of committers), `_io` (the files), `_guard` (the queue and the flags).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa

from frazil.core.errors import Closed, EncodingFailed, FrazilError, LogFailed, Overloaded, TryLater
from frazil.core.rows import stored_schema
from frazil.core.sequences import Opened, ProducerOpening, ProducerState, Sent
from frazil.core.settings import RetentionSettings, SyncMode
from frazil.log.context import LogContext
from frazil.log.folder.catalog import TopicRecord, TopicRecorder
from frazil.log.folder.former import FormerLog
from frazil.log.format.encoding import encoded
from frazil.log.format.frames import SegmentHead
from frazil.log.format.records import temporary_disk_errors, temporary_error
from frazil.log.read.cache import CachedBatch, TopicCache
from frazil.log.read.history import ColderTiers, History
from frazil.log.read.tail import Tail
from frazil.log.repair.recovery import Recovered, Torn
from frazil.log.retention.expiry import ExpiringLog
from frazil.log.retention.policy import Removal
from frazil.log.write.acks import sync_mode_of
from frazil.log.write.group import GroupQueue, MessageRow, Notify, Part, Rows, SentPart
from frazil.log.write.producers import ProducersRecord
from frazil.log.write.segment import Segment, SegmentWriter, SyncFailed
from frazil.log.write.sequencer import Sequencer, sent_rows

_RETRY_AFTER_MS = 10
_log = logging.getLogger("frazil.log")


class TopicLog(ExpiringLog):
    def __init__(
        self,
        context: LogContext,
        record: TopicRecord,
        folder: Path,
        retention: RetentionSettings,
        recovered: Recovered,
        recorder: TopicRecorder,
    ) -> None:
        self.context = context
        self.ack = record.ack
        self._mode = sync_mode_of(context.settings, record.ack)
        self._folder = folder
        self._recorder = recorder
        self._turn, self._io = threading.Lock(), threading.Lock()
        self._guard = threading.Lock()
        self._queue = GroupQueue()
        self._queue_bytes_max = context.settings.queue_bytes_max
        self._telling = threading.Lock()
        self._told: ProducersRecord | None = None
        self.on_producers: Callable[[ProducersRecord], None] | None = None
        """Called when a client opens a producer, before it is answered: another process may need to know it."""
        self._sequencer = Sequencer(str(record.name), recovered.producers)
        self._committing = self._flush_due = self._mark_next = False
        self.failed: FrazilError | None = None
        self.closed = False
        self._drained: threading.Event | None = None
        self._last_time_us = recovered.last_time_us
        self._written_end = recovered.end
        self._writer: SegmentWriter | None = None
        self.name = record.name
        self.log_id = record.log_id
        self.opened = recovered.opened
        self.own_schema = record.schema
        self.schema = stored_schema(record.schema)
        self.retention = retention
        self.cache = TopicCache(context.cache)
        self.tail = Tail()
        self.colder = ColderTiers()
        self.former: tuple[FormerLog, ...] = record.former
        self.torn: Torn | None = recovered.torn
        self.removal = Removal(context.disk, context.budget, recorder, record.dropped)
        self.segments: tuple[Segment, ...] = tuple(recovered.segments)
        self.durable_end = recovered.end
        self._head = self._new_head()
        if recovered.head is not None and not self.segments[-1].sealed:
            head = self._head if recovered.head == self._head else recovered.head
            size_max = context.settings.max_file_size
            self._writer = SegmentWriter(context.disk, context.budget, self.segments[-1], head, size_max)

    # --- what readers see

    @property
    def written_end(self) -> int:
        return self._written_end

    @property
    def visible_end(self) -> int:
        """Readers see what is durable; in mode `none`, which promises nothing, what is written."""
        return self._written_end if self._mode is SyncMode.NONE else self.durable_end

    @property
    def first_offset(self) -> int:
        return self.segments[0].base if self.segments else self.visible_end

    @property
    def history(self) -> History | None:
        """The table, where it may hold rows that the files no longer have."""
        return self.colder.table

    @property
    def problem(self) -> FrazilError | None:
        """Why nothing is acknowledged now."""
        return self.failed

    @property
    def queued_bytes(self) -> int:
        return self._queue.size_bytes

    # --- appending

    def append_message(self, message: MessageRow, size: int) -> int:
        """Append one checked message and wait for its offset."""
        part, index = self.begin_message(message, size, None, None)
        part.wait()
        return part.offset_at(index)

    def append_batch(self, batch: pa.RecordBatch, size: int, sent: Sent | None = None) -> int:
        """Append a checked batch without `_append_time` and wait for its first offset."""
        part = Part(None, batch, size) if sent is None else SentPart(None, batch, size, sent)
        self._queue_batch(part)
        part.wait()
        return part.offset_at(0)

    def begin_batch(self, rows: Rows, size: int, notify: Notify, token: object, sent: Sent | None = None) -> None:
        part = Part(notify, rows, size) if sent is None else SentPart(notify, rows, size, sent)
        part.tokens.append(token)
        self._queue_batch(part)

    def begin_message(self, message: MessageRow, size: int, notify: Notify | None, token: object) -> tuple[Part, int]:
        """Queue one message; returns the part that it joins, and its index there.

        `notify` is called with the finished part, whose tokens are in row order.
        """
        part, queued = None, False
        try:
            with self._guard:
                self._admit(size)
                queue = self._queue
                part = queue.open_part(notify)
                messages = part.messages
                index = len(messages)
                messages.append(message)
                if notify is not None:
                    part.tokens.append(token)
                part.size_bytes += size
                queue.size_bytes += size
                idle, self._committing, queued = not self._committing, True, True
            if idle:
                self.commit_in_pool()
        except BaseException as error:
            self._after_interrupt(error, part, queued=queued)
            raise
        return part, index

    def _queue_batch(self, part: Part) -> None:
        """Queue a batch; a duplicate gets the answer of the original."""
        original: SentPart | int | None = None
        idle = queued = False
        try:
            with self._guard:
                self._admit(0)
                if isinstance(part, SentPart):
                    original = self._sequencer.original(part.sent, part.count)
                if original is None:
                    self._admit(part.size_bytes)
                    self._queue.add(part)
                    if isinstance(part, SentPart):
                        self._sequencer.queued(part)
                    idle, self._committing, queued = not self._committing, True, True
            if idle:
                self.commit_in_pool()
        except BaseException as error:
            self._after_interrupt(error, part, queued=queued)
            raise
        if original is not None:
            self._answer_again(part, original) if isinstance(original, int) else original.echo(part)

    def _answer_again(self, part: Part, first: int) -> None:
        """Give a duplicate the offset of the original."""
        part.settle(first, None)

    def commit_in_pool(self) -> None:
        self.context.pool.submit(self._commit_groups)

    def _admit(self, size: int) -> None:
        if self.failed is not None:
            raise self.failed
        if self.closed:
            raise Closed(f"the log of {self.name}")
        if self._queue.size_bytes + size > self._queue_bytes_max:
            self.context.metrics.refuse()
            raise Overloaded("append", self._queue_bytes_max, _RETRY_AFTER_MS)

    def _after_interrupt(self, error: BaseException, part: Part | None, *, queued: bool) -> None:
        """Recover from Ctrl-C while a caller queued rows: make the queue consistent, and have it committed."""
        if isinstance(error, FrazilError):
            return  # refused before anything was queued
        with self._guard:
            if not queued:
                self._queue.undo_interrupted(part)
                if isinstance(part, SentPart):
                    self._sequencer.failed([part])
            self._committing = True
        self.commit_in_pool()

    def _commit_groups(self) -> None:
        """Commit waiting groups in a committer's thread. If other topics wait for a committer, they take turns."""
        while self._commit_next():
            if self.context.pool.is_busy:
                self.context.pool.submit(self._commit_groups)
                return

    def _commit_next(self) -> bool:
        """Take the next group and store it, one committer at a time: groups are stored in queue order."""
        with self._turn:
            with self._guard:
                if not len(self._queue):
                    self._committing = False
                    if self._drained is not None:
                        self._drained.set()
                    return False
                group = self._queue.take_group()
            count = sum(part.count for part in group)
            with self._io:
                first = self._written_end
                try:
                    payload, synced = self._write_frame(group)
                except BaseException as error:  # noqa: BLE001 - waiters get any error
                    self._settle_failed(group, error)
                    return True
                self._written_end = first + count
                if synced:
                    self.durable_end = self._written_end
                if self._sequencer.waiting:
                    with self._guard:
                        self._sequencer.stored(group, first)
                self.context.cache.add(self.cache, CachedBatch(first, self._written_end, payload, self.schema))
        self.context.metrics.committed(count, payload.size, time.perf_counter() - group[0].queued_at)
        for part in group:
            part.settle(first, None)
            first += part.count
        self.tail.wake()
        return True

    def _settle_failed(self, group: list[Part], error: BaseException) -> None:
        known = error if isinstance(error, FrazilError) else self._fail(f"interrupted by {error!r}")
        group += self._taken_out_behind(group)
        self.context.metrics.failed(sum(part.count for part in group))
        for part in group:
            part.settle(-1, known, None if isinstance(error, Exception) else error)

    def _write_frame(self, group: list[Part]) -> tuple[pa.Buffer, bool]:
        """Write one frame to the file and, by the sync mode, to the device; or raise the matching error."""
        if self.failed is not None:
            raise self.failed
        time_us = max(self.context.clock.now_us(), self._last_time_us)
        sent = list(sent_rows(group)) if self._sequencer.waiting else []
        try:  # the file is untouched: a failure here (no memory) affects only this group
            payload = encoded(group, sent, self.schema, time_us)
        except (pa.ArrowException, MemoryError) as error:
            raise EncodingFailed(str(self.name), str(error)) from error
        try:
            writer = self._writer_for(payload.size, time_us)
            writer.append(self._written_end, payload, after_mark=self._mark_next)
            self._mark_next = False
            segment = writer.segment
            segment.first_time_us = segment.first_time_us or time_us
            segment.last_time_us = self._last_time_us = time_us
            return payload, self._sync_by_mode(writer)
        except SyncFailed as error:
            raise self._fail(str(error)) from error
        except OSError as error:
            if (passing := temporary_error(self._folder, error)) is not None:
                raise passing from error
            raise self._fail(error.strerror or str(error)) from error

    def _sync_by_mode(self, writer: SegmentWriter) -> bool:
        """Sync now, later or never; returns True if the frame just written is on the device."""
        settings = self.context.settings
        if self._mode is SyncMode.ALWAYS:
            self._sync(writer)
            return True
        if self._mode is SyncMode.PERIODIC:
            if writer.unsynced_bytes >= settings.max_batch_bytes:
                self._sync(writer)
                self._mark_next = True
                return True
            if not self._flush_due:
                self._flush_due = True
                self.context.keeper.call_in(settings.fsync_interval_ms, self.flush)
        return False

    def _sync(self, writer: SegmentWriter) -> None:
        started = time.perf_counter()
        writer.sync()
        self.context.metrics.synced(time.perf_counter() - started)

    def sync(self) -> int:
        """Sync written rows in any mode, or raise `LogFailed`; returns the durable end."""
        with self._io:
            self._flush_due = False
            if self.failed is not None:
                raise self.failed
            self._flush()
        self.tail.wake()
        return self.durable_end

    def flush(self) -> int:
        """Sync what can be synced; returns the durable end, for callers that need only durable rows.

        A failure is not lost: it ends the log, and every later `publish`, `sync` and `close` reports it.
        """
        with contextlib.suppress(LogFailed, TryLater):
            self.sync()
        return self.durable_end

    def _flush(self) -> None:
        if self.durable_end == self._written_end:
            return
        if self.failed is not None:
            raise self.failed
        assert self._writer is not None  # sealing syncs: rows that are not durable are in the open segment
        try:
            with temporary_disk_errors(self._folder):
                self._sync(self._writer)
        except SyncFailed as error:
            raise self._fail(str(error)) from error
        self._mark_next = True
        self.durable_end = self._written_end

    def _fail(self, reason: str) -> LogFailed:
        """After a failed sync the kernel may have dropped the pages: never sync again, never acknowledge again."""
        failed = LogFailed(str(self.name), reason)
        _log.error("%s", failed)
        with self._guard:
            self.failed = failed
            waiting = self._queue.take_all()
            self._sequencer.failed(waiting)
        for part in waiting:
            part.settle(-1, failed)
        return failed

    def _taken_out_behind(self, group: list[Part]) -> list[SentPart]:
        """Remove later batches of a failed group's producers, which can no longer follow it."""
        if not self._sequencer.waiting:
            return []
        with self._guard:
            behind = self._sequencer.failed(group)
            self._queue.remove(behind)
        return behind

    # --- producers with sequences

    def producer_state(self, name: str) -> ProducerState | None:
        with self._guard:
            return self._sequencer.producers.get(name)

    def open_producer(self, name: str, opening: ProducerOpening) -> Opened:
        """Decide and record in one step: other clients are refused from then on, even after a crash, and all batches in
        flight are finished when it returns."""
        with self._io:
            with self._guard:
                self._admit(0)
                opened = self._sequencer.open(name, opening)
                waiting = list(self._sequencer.waiting.get(name, ()))
            if (record := self._sequencer.unrecorded) is not None:
                self._recorder.record_producers(record)
                self._sequencer.unrecorded = None
        for part in waiting:
            part.wait()
        self.tell_producers()
        with self._guard:
            return self._sequencer.settled(name, opened)

    def tell_producers(self, *, again: bool = False) -> None:
        """Call `on_producers` with the taken names, one call at a time: a later call has all of an earlier one.

        Names that it has had are not passed again, unless asked for: a client that reconnects needs this log alone.
        """
        if self.on_producers is not None:
            with self._telling:
                with self._guard:
                    record = self._sequencer.producers.record()
                if again or record != self._told:
                    self.on_producers(record)
                    self._told = record

    def look(self) -> None:
        """Ask who owns the log, if somebody knows: it ends if that is another process by now."""

    def _producers_text(self) -> bytes:
        with self._guard:
            return self._sequencer.producers.as_text()

    # --- segments

    def _new_head(self) -> SegmentHead:
        return SegmentHead(self.log_id, str(self.name), self._mode, self.schema)

    def _writer_for(self, payload_bytes: int, now_us: int) -> SegmentWriter:
        """Return the segment for the next frame; a new one if the current one is full, old or of another schema."""
        writer = self._writer
        if writer is not None and self._must_rotate(writer, payload_bytes, now_us):
            self._seal()
            writer = None
        if writer is not None and writer.is_open:
            return writer
        context = self.context
        if writer is None:
            size_max, producers = context.settings.max_file_size, self._producers_text()
            place = (self._folder, self._written_end, self._head, size_max, producers)
            writer = SegmentWriter.create(context.disk, context.budget, *place)
            kept = tuple(segment for segment in self.segments if segment.base < self._written_end)
            self.segments = (*kept, writer.segment)
            self._writer = writer
        context.open_files.used(self)
        return writer

    def _must_rotate(self, writer: SegmentWriter, payload_bytes: int, now_us: int) -> bool:
        if writer.head is not self._head or writer.segment.base == self._written_end:
            return writer.head is not self._head
        return not writer.fits(payload_bytes) or writer.is_old(self.context.settings.max_file_age_ms, now_us)

    def _seal(self) -> None:
        """Close the current segment permanently; one without rows is rewritten under the same name."""
        writer = self._writer
        assert writer is not None
        if writer.segment.base < self._written_end:
            writer.seal(self._written_end)
            self._on_synced()
        else:
            writer.park()
            self.context.budget.give_back(writer.segment.allocated_bytes)
        self._writer = None
        self._mark_next = False
        self.context.open_files.closed(self)

    def _on_synced(self) -> None:
        """All written rows are on the device."""
        self.durable_end = self._written_end

    def change_schema(self, own_schema: pa.Schema) -> None:
        """Rows queued before are stored under the new schema too; the next frame starts a new segment."""
        with self._io:
            self.own_schema, self.schema = own_schema, stored_schema(own_schema)
            self._head = self._new_head()

    def try_park(self) -> bool:
        if not self._io.acquire(blocking=False):
            return False
        try:
            if self._writer is not None:
                if self._writer.unsynced_bytes and self._mode is SyncMode.PERIODIC:
                    return False
                self._writer.park()
            return True
        finally:
            self._io.release()

    def close(self) -> None:
        """Finish queued work, sync it, and refuse the rest; raises `LogFailed` if acknowledged rows are not durable."""
        with self._guard:
            if self.closed:
                return
            self.closed = True
            self._drained = threading.Event()
            if not self._committing:
                self._drained.set()
        self._drained.wait()
        try:
            with self._io:
                if self._mode is not SyncMode.NONE:
                    self._flush()
        finally:
            with self._io:
                if self._writer is not None:
                    self._writer.park()
            self.context.open_files.closed(self)
            self.tail.wake()

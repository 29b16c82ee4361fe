"""The log of one topic: group commit on one side, readers on the other.

Appenders put rows into a queue. Whoever finds no commit running becomes the committer: a plain caller commits
in its own thread, an asyncio caller hands it to the pool. While the disk syncs, the next group gathers, so
grouping costs no latency. A group is one frame: one write, one sync. At a crash in sync mode `always` there is
therefore at most one frame that nobody was told about.

Two locks, always taken in this order: `_io` (the files) before `_guard` (the queue and the flags).
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import replace
from pathlib import Path

import pyarrow as pa

from frazil.core.disk import NO_ROOM
from frazil.core.errors import Closed, DiskFull, EncodingFailed, FrazilError, LogFailed, Overloaded
from frazil.core.names import TopicName
from frazil.core.rows import stored_schema
from frazil.core.sequences import ProducerState, Sent
from frazil.core.settings import RetentionSettings, SyncMode
from frazil.log.cache import CachedBatch, TopicCache
from frazil.log.catalog import TopicRecorder
from frazil.log.context import LogContext
from frazil.log.encoding import encoded
from frazil.log.format import SegmentHead
from frazil.log.group import GroupQueue, MessageRow, Notify, Part, Rows, SentPart
from frazil.log.history import History
from frazil.log.records import room_can_wait
from frazil.log.recovery import Recovered, Torn
from frazil.log.retention import Removal, learn_times, removable
from frazil.log.segment import Segment, SegmentWriter, SyncFailed
from frazil.log.sequencer import Sequencer, sent_rows
from frazil.log.tail import Tail

_RETRY_AFTER_MS = 10
_log = logging.getLogger("frazil.log")


class TopicLog:
    def __init__(
        self,
        context: LogContext,
        name: TopicName,
        folder: Path,
        log_id: str,
        own_schema: pa.Schema | None,
        retention: RetentionSettings,
        recovered: Recovered,
        recorder: TopicRecorder,
    ) -> None:
        self.context = context
        self._folder = folder
        self._recorder = recorder
        self._io = threading.Lock()
        self._guard = threading.Lock()
        self._queue = GroupQueue()
        self._sequencer = Sequencer(str(name), recovered.producers)
        self._committing = False
        self.failed: FrazilError | None = None
        self.closed = False
        self._flush_due = False
        self._leader: int | None = None
        self._drained: threading.Event | None = None
        self._mark_next = False
        self._last_time_us = recovered.last_time_us
        self._written_end = recovered.end
        self._writer: SegmentWriter | None = None
        self.name = name
        self.log_id = log_id
        self.own_schema = own_schema
        self.schema = stored_schema(own_schema)
        self.retention = retention
        self.cache = TopicCache(context.cache)
        self.tail = Tail()
        self.history: History | None = None
        self.torn: Torn | None = recovered.torn
        self._removal = Removal(context.disk, context.budget)
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
    def queued_bytes(self) -> int:
        return self._queue.size_bytes

    # --- appending

    def append_message(self, message: MessageRow, size: int) -> int:
        """Append one checked message and wait for its offset."""
        try:
            with self._guard:
                self._admit(size)
                part = self._queue.open_part(None)
                part.size_bytes += size
                part.messages.append(message)
                index = len(part.messages) - 1
                leads = self._lead()
            self._commit_groups(until=part) if leads else part.wait()
        except BaseException:
            self._hand_over()
            raise
        return part.offset_at(index)

    def append_batch(self, batch: pa.RecordBatch, size: int, sent: Sent | None = None) -> int:
        """Append a checked batch without `_append_time` and wait for its first offset."""
        try:
            part = Part(None, batch, size) if sent is None else SentPart(None, batch, size, sent)
            leads = self._add(part)
            self._commit_groups(until=part) if leads else part.wait()
        except BaseException:
            self._hand_over()
            raise
        return part.offset_at(0)

    def begin_message(self, message: MessageRow, size: int, notify: Notify, token: object) -> None:
        """The same without waiting: `notify` is called with the settled part, whose tokens are in order of its rows."""
        with self._guard:
            self._admit(size)
            part = self._queue.open_part(notify)
            part.size_bytes += size
            part.messages.append(message)
            part.tokens.append(token)
            if self._committing:
                return
            self._committing = True
        self.commit_in_pool()

    def begin_batch(self, rows: Rows, size: int, notify: Notify, token: object, sent: Sent | None = None) -> None:
        part = Part(notify, rows, size) if sent is None else SentPart(notify, rows, size, sent)
        part.tokens.append(token)
        if self._add(part):
            self.commit_in_pool()

    def _add(self, part: Part) -> bool:
        """Queue a batch; True says that the caller must see to the commit."""
        if isinstance(part, SentPart):
            return self._add_sent(part)
        with self._guard:
            self._admit(part.size_bytes)
            self._queue.add(part)
            return self._lead()

    def _add_sent(self, part: SentPart) -> bool:
        """Queue a numbered batch, or answer it as the same one was, or will be, answered before."""
        with self._guard:
            self._admit(0)
            original = self._sequencer.original(part.sent, part.count)
            if original is None:
                self._admit(part.size_bytes)
                self._queue.add(part)
                self._sequencer.queued(part)
                return self._lead()
        part.settle(original, None) if isinstance(original, int) else original.echo(part)
        return False

    def commit_in_pool(self) -> None:
        self.context.pool.submit(self._commit_groups)

    def _admit(self, size: int) -> None:
        if self.failed is not None:
            raise self.failed
        if self.closed:
            raise Closed(f"the log of {self.name}")
        limit = self.context.settings.queue_bytes_max
        if self._queue.size_bytes + size > limit:
            self.context.metrics.refuse()
            raise Overloaded("append", limit, _RETRY_AFTER_MS)
        self._queue.size_bytes += size

    def _lead(self) -> bool:
        if self._committing:
            return False
        self._committing = True
        self._leader = threading.get_ident()
        return True

    def _hand_over(self) -> None:
        """An interrupted caller (Ctrl-C) must not leave others waiting for a commit that it had to do."""
        with self._guard:
            if not self._committing or self._leader != threading.get_ident():
                return
            self._leader = None
        self.commit_in_pool()

    def _commit_groups(self, until: Part | None = None) -> None:
        while True:
            with self._guard:
                if not len(self._queue):
                    self._committing = False
                    self._leader = None
                    if self._drained is not None:
                        self._drained.set()
                    return
                if until is not None and until.done:
                    self._leader = None
                    break
                group = self._queue.take_group()
            self._commit(group)
        self.commit_in_pool()

    def _commit(self, group: list[Part]) -> None:
        count = sum(part.count for part in group)
        with self._io:
            first = self._written_end
            try:
                payload, synced = self._write_frame(group)
            except BaseException as error:
                known = error if isinstance(error, FrazilError) else self._fail(f"interrupted by {error!r}")
                group += self._taken_out_behind(group)
                self.context.metrics.failed(sum(part.count for part in group))
                for part in group:
                    part.settle(-1, known)
                if isinstance(error, Exception):
                    return
                raise
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

    def _write_frame(self, group: list[Part]) -> tuple[pa.Buffer, bool]:
        """One frame in the file and, by the sync mode, on the device; or an error that fits the cause."""
        if self.failed is not None:
            raise self.failed
        time_us = max(self.context.clock.now_us(), self._last_time_us)
        sent = list(sent_rows(group)) if self._sequencer.waiting else []
        try:  # nothing has touched the file yet: what fails here (no memory) fails this group alone
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
            if error.errno in NO_ROOM:
                raise DiskFull(str(self._folder), error.strerror or str(error)) from error
            raise self._fail(error.strerror or str(error)) from error

    def _sync_by_mode(self, writer: SegmentWriter) -> bool:
        """Sync now, or later, or never; True says that the frame just written is on the device."""
        settings = self.context.settings
        if settings.sync_mode is SyncMode.ALWAYS:
            self._sync(writer)
            return True
        if settings.sync_mode is SyncMode.PERIODIC:
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

    def flush(self) -> int:
        """Sync what is written; returns the durable end. In any mode, for a reader that needs certainty."""
        with self._io:
            self._flush_due = False
            if self.failed is None:
                self._flush()
        self.tail.wake()
        return self.durable_end

    def _flush(self) -> None:
        if self.durable_end == self._written_end:
            return
        assert self._writer is not None  # sealing syncs: what is not durable is in the open segment
        try:
            self._sync(self._writer)
        except SyncFailed as error:
            self._fail(str(error))
            return
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
        """What producers of a failed group have sent after it cannot follow it any more."""
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

    def open_producer(self, name: str) -> ProducerState:
        """Take a name: older clients are refused from now on, also after a crash, and all they sent is settled."""
        with self._io:
            with self._guard:
                self._admit(0)
                opened = self._sequencer.open(name)
                epochs = self._sequencer.producers.epochs()
                waiting = list(self._sequencer.waiting.get(name, ()))
            self._recorder.record_epochs(epochs)
        for part in waiting:
            part.wait()
        return replace(self.producer_state(name) or opened, epoch=opened.epoch)  # the name may be another's by now

    def _producers_text(self) -> bytes:
        with self._guard:
            return self._sequencer.producers.as_text()

    # --- segments

    @property
    def _mode(self) -> SyncMode:
        return self.context.settings.sync_mode

    def _new_head(self) -> SegmentHead:
        return SegmentHead(self.log_id, str(self.name), self._mode, self.schema)

    def _writer_for(self, payload_bytes: int, now_us: int) -> SegmentWriter:
        """The segment that takes the next frame; a new one if the present one is full, old or of another schema."""
        writer = self._writer
        if writer is not None and self._must_rotate(writer, payload_bytes, now_us):
            self._seal()
            writer = None
        if writer is not None and writer.is_open:
            return writer
        context = self.context
        if writer is None:
            writer = SegmentWriter.create(
                context.disk,
                context.budget,
                self._folder,
                self._written_end,
                self._head,
                context.settings.max_file_size,
                self._producers_text(),
            )
            kept = tuple(segment for segment in self.segments if segment.base < self._written_end)
            self.segments = (*kept, writer.segment)
            self._writer = writer
        context.open_files.used(self)
        return writer

    def _must_rotate(self, writer: SegmentWriter, payload_bytes: int, now_us: int) -> bool:
        if writer.head is not self._head:
            return True
        has_rows = writer.segment.base < self._written_end
        age_ms = self.context.settings.max_file_age_ms
        return has_rows and (not writer.fits(payload_bytes) or writer.is_old(age_ms, now_us))

    def _seal(self) -> None:
        """Close the present segment for good; one without rows is simply written anew under the same name."""
        writer = self._writer
        assert writer is not None
        if writer.segment.base < self._written_end:
            writer.seal(self._written_end)
            self.durable_end = self._written_end
        else:
            writer.park()
            self.context.budget.give_back(writer.segment.allocated_bytes)
        self._writer = None
        self._mark_next = False
        self.context.open_files.closed(self)

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

    # --- by the clock

    def maintain(self, floor: int | None = None) -> int:
        """Seal an old segment and remove expired ones; `floor` is where the colder tier ends, if there is one."""
        now_us = self.context.clock.now_us()
        with self._io:
            if self.failed is not None or self.closed:
                return 0
            try:
                with room_can_wait():
                    if self._writer is not None and self._must_rotate(self._writer, 0, now_us):
                        self._seal()
                if self.retention.age_ms is not None:
                    learn_times(self.context.disk, self.segments, self._last_time_us)
                end = self.durable_end
                if floor is None:  # without a word on acknowledgements none can be taken for given
                    floor = 0 if self.retention.until_acked else end
                going = removable(self.segments, end, self.retention, now_us, floor)
                if going and going[-1] is self.segments[-1]:
                    last = going.pop()
                    with room_can_wait():
                        self._roll_empty()
                        going.append(last)
            except SyncFailed as error:
                raise self._fail(str(error)) from error
            return self._remove(going)

    def _roll_empty(self) -> None:
        """The last segment holds the place of the next offset; before it goes, an empty one takes over."""
        if self._writer is not None:
            self._seal()
        self._writer_for(0, self._last_time_us)

    def _remove(self, going: list[Segment]) -> int:
        """Decide durably where the log begins, then remove what is below; a removal that fails is tried again."""
        if going:
            kept = self.segments[len(going) :]
            self._recorder.record_first(kept[0].base)
            self.segments = kept
            self._removal.going += going
        return self._removal.finish()

    def close(self) -> None:
        """Finish what was queued, sync it, and refuse the rest."""
        with self._guard:
            if self.closed:
                return
            self.closed = True
            self._drained = threading.Event()
            if not self._committing:
                self._drained.set()
        self._drained.wait()
        with self._io:
            if self.failed is None and self._mode is not SyncMode.NONE:
                self._flush()
            if self._writer is not None:
                self._writer.park()
            self.context.open_files.closed(self)
        self.tail.wake()

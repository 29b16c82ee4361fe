"""A log whose rows are acknowledged, and readable, once they are in the object store.

    queue       rows gather for a few milliseconds (`GroupStores.gather_ms`), or until there are enough of them
    commit      a group is written to the log's own file, unsynced, and becomes a `Flight`
    flight      one put, repeated with the same bytes until the store answers; several flights travel at once
    arrival     flights count in order of their offsets: then their callers are answered, and readers see the rows

Another process that takes the log over is noticed by a refused put: from then on this log acknowledges nothing.

Locks, in this order: `_turn`, `_io` (as in `TopicLog`), `_settling` (arrivals), `_guard`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from frazil.core.errors import (
    Closed,
    FrazilError,
    LogFailed,
    LogFenced,
    MetadataUnavailable,
    ObjectStoreUnavailable,
    OutcomeUnknown,
    Overloaded,
    TryLater,
)
from frazil.core.sequences import Opened, ProducerOpening
from frazil.core.settings import RetentionSettings
from frazil.log.context import LogContext
from frazil.log.folder.catalog import TopicRecord, TopicRecorder
from frazil.log.format.frames import pack_header
from frazil.log.read.cache import CachedBatch
from frazil.log.repair.recovery import Recovered
from frazil.log.topic_log import TopicLog
from frazil.log.write.flights import Deadline, Flight, Flights, back_off_ms
from frazil.log.write.group import MessageRow, Notify, Part
from frazil.log.write.producers import Producers
from frazil.log.write.sequencer import sent_rows
from frazil.log.write.stored_groups import FrameGroup, GroupStore, GroupStores

AWAY_TRIES = 3
"""After so many failed tries the store counts as away, and new callers are refused at once."""
CLOSE_SECONDS_AWAY = 1.0

_log = logging.getLogger("frazil.log")


class ObjectLog(TopicLog):
    """`store` is None for a new log: its first rows take it over."""

    def __init__(
        self,
        context: LogContext,
        record: TopicRecord,
        folder: Path,
        retention: RetentionSettings,
        recovered: Recovered,
        recorder: TopicRecorder,
        stores: GroupStores,
        store: GroupStore | None,
    ) -> None:
        self._written = Producers(recovered.producers.all(), recovered.producers.floor)
        """The producers by the rows of the file; the sequencer's are those by the stored rows."""
        super().__init__(context, record, folder, retention, recovered, recorder)
        self._stores = stores
        self._store = store
        self._flights, self._deadline = Flights(), Deadline()
        self._late: list[tuple[int, Part]] = []
        """Duplicates of rows that a restart has found in the files, and that are not stored yet."""
        self._settling = threading.RLock()
        self._moved = threading.Condition(self._guard)
        self._gathers = self._hurries = self._waits_for_room = self._begins = False
        self._gave_up = self._shut = self._times = self._has_ended = False
        self._begin_tries = self._tail_tries = 0
        self._began_at = 0.0
        self._away: FrazilError | None = None
        self._tail: Iterator[FrameGroup] = iter(())
        if store is not None:
            self.durable_end = store.end
            self._tail = store.tail(context.disk, self.segments, recovered.end)

    def start(self) -> None:
        """Store the rows of the files that are not stored yet."""
        if self.durable_end < self._written_end:
            with self._guard:
                self._committing = True
            self._commit_now()

    @property
    def visible_end(self) -> int:
        return self.durable_end

    @property
    def problem(self) -> FrazilError | None:
        return self.failed or self._away

    # --- appending

    def begin_message(self, message: MessageRow, size: int, notify: Notify | None, token: object) -> tuple[Part, int]:
        joined = super().begin_message(message, size, notify, token)
        self._hurry()
        return joined

    def _queue_batch(self, part: Part) -> None:
        super()._queue_batch(part)
        self._hurry()

    def _hurry(self) -> None:
        """Store a large group at once."""
        if self._gathers and not self._hurries and self._queue.size_bytes >= self._stores.gather_bytes_max:
            self._hurries = True
            self._commit_now()

    def _admit(self, size: int) -> None:
        super()._admit(size)
        if self._away is not None:
            self.context.metrics.refuse()
            raise self._refusal()

    def _refusal(self) -> Overloaded:
        return Overloaded("object store", self._stores.in_flight_max * self._stores.gather_bytes_max, back_off_ms(4))

    def _answer_again(self, part: Part, first: int) -> None:
        with self._settling:
            is_stored = first + part.count <= self.durable_end
            if not is_stored and self.failed is None and not self._shut:
                self._late.append((first, part))
                return
        part.settle(first, None) if is_stored else part.settle(-1, self.failed or self._refusal())

    def open_producer(self, name: str, opening: ProducerOpening) -> Opened:
        opened = super().open_producer(name, opening)
        with self._guard:
            if name in self._sequencer.waiting:  # their outcome was answered as unknown
                raise self._refusal()
        return opened

    def _producers_text(self) -> bytes:
        return self._written.as_text()

    # --- committing

    def commit_in_pool(self) -> None:
        self._gather(self._stores.gather_ms)

    def _gather(self, left_ms: int) -> None:
        if left_ms <= 0 or self.closed:
            self._commit_now()
        elif not self._gathers:
            self._gathers = True
            self.context.keeper.call_in(left_ms, self._gathered)

    def _gathered(self) -> None:
        self._gathers = False
        self._commit_now()

    def _commit_now(self) -> None:
        self.context.pool.submit(self._commit_groups)

    def _commit_next(self) -> bool:
        with self._turn:
            with self._guard:
                self._hurries = False
                groups = self._next_groups()
                if groups is None:
                    return False
            try:
                flight = self._written_flight(groups) if groups else Flight(next(self._tail), ())
            except TryLater as error:  # the rows of the file can't be read now
                self._tail_tries += 1
                self._note_away(error, self._tail_tries)
                self._try_again(self._tail_tries, self._commit_now)
                return False
            except Exception as error:  # noqa: BLE001 - waiters get any error
                self._end_with(self._known(error))
                return False
            if flight is not None:
                self._depart(flight)
        return True

    def _depart(self, flight: Flight) -> None:
        with self._guard:
            if not (is_over := self._shut or self._has_ended):
                self._flights.add(flight)
                self._watch()
        if is_over:
            self._refuse_closed(flight)
        else:
            self._stores.submit(partial(self._send, flight))

    def _next_groups(self) -> list[list[Part]] | None:
        """Return the frames of the next object; none for rows that a restart has found; None if it is not yet time."""
        has_tail = self._tail_is_left and self.failed is None and not self._shut
        if not len(self._queue) and not has_tail:
            self._committing = False
            self._moved.notify_all()
            return None
        if self._store is None:
            if not self._begins:
                self._begins, self._began_at = True, time.perf_counter()
                self._watch()
                self._stores.submit(self._begin)
            return None
        if len(self._flights) >= self._stores.in_flight_max:
            self._waits_for_room = True
            return None
        if has_tail:
            return []
        if (left_ms := self._gather_left_ms()) > 0:
            self._gather(left_ms)
            return None
        groups, size_bytes = [], 0
        while len(self._queue) and size_bytes < self._stores.gather_bytes_max:
            groups.append(self._queue.take_group())
            size_bytes += sum(part.size_bytes for part in groups[-1])
        return groups

    @property
    def _tail_is_left(self) -> bool:
        return self._written_end > (self._flights.waiting[-1].group.end if len(self._flights) else self.durable_end)

    def _gather_left_ms(self) -> int:
        if self.closed or self.failed is not None or self._queue.size_bytes >= self._stores.gather_bytes_max:
            return 0
        waited_ms = (time.perf_counter() - self._queue.oldest_at) * 1_000
        return int(self._stores.gather_ms - waited_ms + 0.5)

    def _written_flight(self, groups: list[list[Part]]) -> Flight | None:
        """Write the frames to the file; those that cannot be written, and all behind them, fail."""
        with self._io:
            first, head, producers = self._written_end, self._head, self._producers_text()
            frames, parts, first_time_us = [], [], 0
            for at, group in enumerate(groups):
                start = self._written_end
                try:
                    payload, _ = self._write_frame(group)
                except BaseException as error:  # noqa: BLE001 - waiters get any error
                    self._settle_failed([part for each in groups[at:] for part in each], error)
                    break
                first_time_us = first_time_us or self._last_time_us
                self._written_end = start + sum(part.count for part in group)
                for row, count, sent in sent_rows(group):
                    self._written.store(sent, count, start + row)
                self.context.cache.add(self.cache, CachedBatch(start, self._written_end, payload, self.schema))
                frames += [pack_header(start, payload), payload]
                parts += group
            if not parts:
                return None
            place = (first, self._written_end, head, producers, frames, first_time_us, self._last_time_us)
            return Flight(FrameGroup(*place), parts)

    def _on_synced(self) -> None:
        pass  # what counts is in the store

    # --- in the threads for requests

    def _begin(self) -> None:
        """Take a new log over."""
        try:
            store = self._stores.take_over(self.log_id, self.name)
            if store.end != self._written_end:
                raise LogFailed(str(self.name), "another process stores rows of it; see who owns a copy of this folder")
            self._recorder.record_object_epoch(store.epoch)
        except LogFenced as error:
            self._end_with(error)
        except (TryLater, MetadataUnavailable) as error:
            self._begin_tries += 1
            self._note_away(error, self._begin_tries)
            self._try_again(self._begin_tries, self._begin)
        except Exception as error:  # noqa: BLE001 - waiters get any error
            self._end_with(self._known(error))
        else:
            self._store, self._away = store, None
            self._commit_now()

    def _send(self, flight: Flight) -> None:
        assert self._store is not None
        flight.waits = False
        try:
            flight.content = flight.content or self._store.pack(flight.group)
            self._store.put(flight.group, flight.content)
        except ObjectStoreUnavailable as error:
            self._postpone(flight, error)
        except BaseException as error:  # noqa: BLE001 - waiters get any error
            self._end_with(self._known(error))
        else:
            self._arrive(flight)

    def _known(self, error: BaseException) -> FrazilError:
        return error if isinstance(error, FrazilError) else LogFailed(str(self.name), f"interrupted by {error!r}")

    def _postpone(self, flight: Flight, error: FrazilError) -> None:
        flight.tries += 1
        self._note_away(error, flight.tries)
        with self._guard:
            if self.closed:
                flight.gave_up = True
                self._moved.notify_all()
                return
            flight.waits = True
        self._later(flight.tries, partial(self._send_again, flight))

    def _send_again(self, flight: Flight) -> None:
        with self._guard:
            if not flight.waits or flight not in self._flights:
                return
            flight.waits = False
        self._send(flight)

    def _try_again(self, tries: int, job: object) -> None:
        """Try it later; if the log is being closed, that is for the next start."""
        if not self.closed:
            self._later(tries, job)
            return
        with self._guard:
            self._gave_up = True
            self._moved.notify_all()

    def _later(self, tries: int, job: object) -> None:
        self.context.keeper.call_in(back_off_ms(tries), partial(self._stores.submit, job))  # type: ignore[arg-type]

    def _note_away(self, error: FrazilError, tries: int) -> None:
        if tries >= AWAY_TRIES and self._away is None:
            self._away = error
            _log.error("%s acknowledges nothing until the object store answers: %s", self.name, error)

    def _watch(self) -> None:
        """Have callers answered in time, whatever the store does. The caller holds `_guard`."""
        if not self._times:
            self._times = True
            self.context.keeper.call_in(self._deadline.set(self._stores.ack_timeout_ms), self._time_out)

    def _time_out(self) -> None:
        """Answer callers that wait too long for the store: what is queued is refused, the rest is unknown."""
        if more_ms := self._deadline.extended_ms():
            self.context.keeper.call_in(more_ms, self._time_out)
            return
        with self._settling:
            with self._guard:
                self._times = False
                waited_ms = self._waited_ms()
                if waited_ms is None or self.failed is not None:
                    return
                self._times, limit_ms = True, self._stores.ack_timeout_ms
                left_ms = limit_ms - waited_ms
                self.context.keeper.call_in(self._deadline.set(left_ms if left_ms > 0 else limit_ms), self._time_out)
                if left_ms > 0:
                    return
                queued = self._queue.take_all()
                behind = self._sequencer.failed(queued)
                flights = list(self._flights.waiting)
                late, self._late = self._late, []
            self._note_away(ObjectStoreUnavailable(self.log_id, f"no answer for {waited_ms} ms"), AWAY_TRIES)
            for part in [*queued, *behind]:
                part.settle(-1, self._refusal())
            unknown = self._unknown("the object store does not answer; they are stored once it does")
            for flight in flights:
                flight.refuse(unknown)
            for _, part in late:
                part.settle(-1, unknown)

    def _waited_ms(self) -> int | None:
        """Return for how long the store has not answered what was asked first; None if nothing waits for it."""
        if len(self._flights):
            since = self._flights.waiting[0].departed_at
        elif self._store is None and self._begins:
            since = self._began_at
        else:
            return None
        return int((time.perf_counter() - since) * 1_000)

    def _unknown(self, why: str) -> OutcomeUnknown:
        return OutcomeUnknown(str(self.name), why)

    def _arrive(self, flight: Flight) -> None:
        """Count the object, and those behind it that arrived before it."""
        with self._settling:
            flight.arrived = True
            self._away = None
            while True:
                with self._guard:
                    done = self._flights.take_arrived()
                    if done is None:
                        break
                    if self._sequencer.waiting:
                        self._sequencer.stored(done.parts, done.group.first)
                    self.durable_end = done.group.end
                    self._moved.notify_all()
                done.count(self.context.metrics)
                done.answer()
            self._answer_late()
            with self._guard:
                goes_on, self._waits_for_room = self._waits_for_room, False
        self.tail.wake()
        if goes_on:
            self._commit_now()

    def _answer_late(self) -> None:
        late, self._late = self._late, []
        for first, part in late:
            if first + part.count <= self.durable_end:
                part.settle(first, None)
            else:
                self._late.append((first, part))

    # --- the end

    def look(self) -> None:
        """Ask the store who owns the log: without rows to put, no refusal would tell."""
        if self._store is not None and self.failed is None and not self.closed:
            try:
                self._store.look()
            except LogFenced as error:
                self._end_with(error)

    def _end_with(self, error: FrazilError) -> None:
        """Acknowledge nothing more: the log belongs to somebody else, or an object cannot be what it should be."""
        refused_at = self._store.refused_at if self._store is not None else None
        with self._settling:
            with self._guard:
                self.failed, self._has_ended = self.failed or error, True
                queued, flights = self._queue.take_all(), self._flights.take_all()
                self._sequencer.failed([*(part for flight in flights for part in flight.parts), *queued])
                late, self._late = self._late, []
                self._committing = False
                self._moved.notify_all()
            for flight in flights:
                is_refused = refused_at is not None and flight.group.first >= refused_at
                known = error if is_refused else self._unknown(f"it was on its way when this happened: {error.message}")
                flight.refuse(known, error if isinstance(error, LogFenced) else None)  # its owner knows what is stored
            for part in [*(part for _, part in late), *queued]:
                part.settle(-1, error)
        _log.error("%s acknowledges nothing more: %s", self.name, error)
        self.tail.wake()

    def sync(self) -> int:
        """Wait until all rows so far are stored."""
        with self._moved:
            wanted = self._written_end + self._queue.count
            timeout = self._stores.ack_timeout_ms / 1_000
            self._moved.wait_for(lambda: self.failed is not None or self.durable_end >= wanted, timeout)
            if self.failed is not None:
                raise self.failed
            if self.durable_end < wanted:
                raise self._away or self._refusal()
        return self.durable_end

    def flush(self) -> int:
        return self.durable_end

    def close(self) -> None:
        """Store what is queued, as far as the store answers in time. The next start stores the rest, unacknowledged."""
        with self._guard:
            if self.closed:
                return
            self.closed = True
            again = [flight for flight in self._flights.waiting if flight.waits]
            is_idle = not len(self._queue) and not len(self._flights) and not self._committing
        for flight in again:
            self._stores.submit(partial(self._send_again, flight))
        if not is_idle:
            self._commit_now()
        with self._moved:
            limit = self._stores.close_seconds_max
            if not self._moved.wait_for(self._is_over, limit if self._away is None else min(limit, CLOSE_SECONDS_AWAY)):
                self._stores.close_seconds_max = 0.0
            self._shut = True
            queued, flights = self._queue.take_all(), self._flights.take_all()
        with self._settling:
            late, self._late = self._late, []
        for flight in flights:
            self._refuse_closed(flight)
        for part in [*queued, *(part for _, part in late)]:
            part.settle(-1, self._refusal())
        with self._io:
            if self._writer is not None:
                self._writer.park()
        self._stores.release(self.log_id)
        self.context.open_files.closed(self)
        self.tail.wake()

    def _refuse_closed(self, flight: Flight) -> None:
        unknown = self._unknown("the log was closed before the object store answered")
        known = None if self._has_ended else Closed(f"the log of {self.name}")
        flight.refuse(unknown, self.failed if isinstance(self.failed, LogFenced) else known)  # who knows the number

    def _is_over(self) -> bool:
        if self.failed is not None or self._gave_up or any(flight.gave_up for flight in self._flights.waiting):
            return True
        return not len(self._queue) and not len(self._flights) and not self._committing

"""The sender of one topic's batches to its owner: groups rows, sends in order, and resends until answered.

Callers put rows into a queue. While the pipe has room, the next batch is sent at once; otherwise rows accumulate and
are sent together, without a timer, as in the log's group commit. Each batch has a sequence, the number of its first row
within this producer, by which the log detects duplicates. So after a disconnect everything unanswered is resent in
order, and nothing is stored twice. If its epoch no longer belongs to this client, the outcome is unknown, and its
callers get that error: a batch of another client is never mistaken for it.

After a refusal the owner accepts no more from the stream; the batches after the refused one get new sequences.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from frazil.client.connection import Connection, Elsewhere, delay_seconds, is_temporary, reason_of
from frazil.client.identity import ProducerIdentity
from frazil.client.put_stream import PutStream
from frazil.client.window import Batch, SenderLimits, TracedPart, Window, encoded
from frazil.core.clock import Clock
from frazil.core.errors import (
    Closed,
    FrazilError,
    LogFailed,
    OutcomeUnknown,
    OwnerUnreachable,
    ProducerFenced,
    SequenceForgotten,
    SequenceGap,
    TopicNotFound,
)
from frazil.core.errors.codec import from_dict
from frazil.log.uninterrupted import start_thread
from frazil.log.write.group import MessageRow, Notify, Part

CLOSE_SECONDS_MAX = 5.0

_log = logging.getLogger("frazil.client")


class Sender:
    """Thread-safe. Blocking callers write in their own thread; a worker writes for asyncio callers."""

    def __init__(
        self,
        connection: Connection,
        topic: str,
        log_id: str,
        identity: ProducerIdentity,
        limits: SenderLimits,
        clock: Clock,
    ) -> None:
        self._connection = connection
        self._topic = topic
        self._log_id = log_id
        self._identity = identity
        self._limits = limits
        self._clock = clock
        self._guard = threading.Lock()
        self._changed = threading.Condition(self._guard)
        self._window = Window(limits)
        self._stream: PutStream | None = None
        self._abandoned: PutStream | None = None
        """A stream whose caller was interrupted during a write; the worker ends it."""
        self._reader: threading.Thread | None = None
        self._worker: threading.Thread | None = None
        self._sends: int | None = None
        """The thread that is sending: one at a time."""
        self._next_sequence = 0
        self._refused_at: int | None = None
        self._forgotten = False
        self._attempts = 0
        self._failure: FrazilError | None = None
        """Why the last attempt could not open a stream."""
        self._since_us = 0
        self._closed = False

    # --- for callers

    def append_message(self, message: MessageRow, size: int) -> int:
        """Send one checked message and wait for its offset."""
        self._connection.process.check()
        try:
            with self._guard:
                self._check_open()
                part = self._window.add_message(message, size, None)
                index = len(part.messages) - 1
                leads = self._lead()
            if leads:
                self._send_ready()
        except BaseException as error:
            self._after_interrupt(error)
            raise
        part.wait()
        return part.offset_at(index)

    def append_batch(self, batch: pa.RecordBatch, size: int) -> int:
        """Send a checked batch and wait for its first offset."""
        self._connection.process.check()
        part = TracedPart(None, batch, size)
        try:
            with self._guard:
                self._check_open()
                self._window.add(part)
                leads = self._lead()
            if leads:
                self._send_ready()
        except BaseException as error:
            self._after_interrupt(error)
            raise
        part.wait()
        return part.offset_at(0)

    def begin_message(self, message: MessageRow, size: int, notify: Notify, token: object) -> None:
        """Send without waiting, and without a write that might block: `notify` gets the finished part."""
        self._connection.process.check()
        with self._guard:
            self._check_open()
            self._window.add_message(message, size, notify).tokens.append(token)
            self._wake()

    def begin_batch(self, batch: pa.RecordBatch, size: int, notify: Notify, token: object) -> None:
        self._connection.process.check()
        part = TracedPart(notify, batch, size)
        part.tokens.append(token)
        with self._guard:
            self._check_open()
            self._window.add(part)
            self._wake()

    def open_producer(self) -> None:
        """Reclaim the name from another client with the next publish, at the user's request."""
        self._connection.process.check()
        with self._guard:
            if self._identity.fenced is not None:
                self._identity.begin_anew()

    def close(self) -> None:
        """Wait for unanswered batches, as long as any publish would, and end the stream."""
        if not self._connection.process.is_here:
            return
        with self._guard:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
            worker = self._worker
        if worker is not None:
            worker.join()
        reader = self._reader
        if self._stream is not None:
            self._stream.half_close()
        if reader is not None:
            reader.join(CLOSE_SECONDS_MAX)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed(f"the connection to {self._connection.address}")
        if self._identity.fenced is not None:
            raise self._identity.fenced
        if self._worker is None:
            worker = threading.Thread(target=self._work, name="frazil-send", daemon=True)
            start_thread(worker)
            self._worker = worker

    def _after_interrupt(self, error: BaseException) -> None:
        """Recover from Ctrl-C at any point of a caller that queued rows or sent batches. A batch that may be half sent
        is resent on another stream, and other callers continue.
        """
        mine = self._sends == threading.get_ident()
        if isinstance(error, FrazilError) and not mine:
            return  # refused before anything was queued
        with self._guard:
            if mine:
                self._abandoned, self._stream, self._sends = self._stream, None, None
            self._window.undo_interrupted(others_send=self._sends is not None)
            self._changed.notify_all()

    def _lead(self) -> bool:
        """Whether the caller, which holds the guard, sends the ready batches; otherwise another thread or the worker
        does.
        """
        if self._sends is not None or not self._window.may_send:
            return False
        if self._stream is None:
            self._changed.notify_all()
            return False
        self._sends = threading.get_ident()
        return True

    def _wake(self) -> None:
        if self._closed or (self._sends is None and self._window.may_send):
            self._changed.notify_all()

    # --- sending

    def _send_ready(self) -> None:
        """Send everything that the pipe has room for, from one thread at a time."""
        while (taken := self._take()) is not None:
            parts, stream = taken
            try:
                batch = encoded(self._topic, parts, self._clock.now_us())
            except FrazilError as error:
                _settle(parts, error)
                continue
            with self._guard:
                same = self._stream is stream and stream.schema.equals(batch.schema)
                batch.sequence = self._next_sequence
                self._next_sequence += batch.count
                self._window.sent(batch)
            if not same:  # the columns differ from the stream's, or the stream was lost: use another stream
                self._lost(stream)
                break
            try:
                stream.write(batch)
            except FrazilError:
                self._lost(stream)
                break
        with self._guard:
            self._sends = None
            if self._closed or self._has_work():  # otherwise every message would wake the worker
                self._changed.notify_all()

    def _take(self) -> tuple[list[TracedPart], PutStream] | None:
        with self._guard:
            if self._stream is None or not self._window.may_send:
                return None
            return self._window.take(), self._stream

    def _lost(self, stream: PutStream) -> None:
        stream.half_close()
        with self._guard:
            if self._stream is stream:
                self._stream = None
                self._changed.notify_all()

    # --- the worker: sends for callers that may not block, and reopens the stream

    def _work(self) -> None:
        with self._guard:
            if self._worker not in (None, threading.current_thread()):
                return  # left by an interrupted start
            self._worker = threading.current_thread()
        try:
            while self._wait_for_work():
                if (abandoned := self._abandoned) is not None:
                    self._abandoned = None
                    abandoned.half_close()
                elif self._sends is not None:
                    self._send_ready()
                else:
                    self._open_again()
        except BaseException as error:  # a bug: no caller may wait for a worker that is gone
            self._after_interrupt(error)
            self._give_up(OutcomeUnknown(self._topic, repr(error)))
            self._worker = None
            raise

    def _wait_for_work(self) -> bool:
        """Return False at the end; otherwise, if there is a stream, callers send themselves."""
        with self._guard:
            while not self._has_work():
                if self._closed and not self._window.busy:
                    return False
                self._changed.wait()
            if self._stream is not None and self._abandoned is None:
                self._sends = threading.get_ident()
            return True

    def _open_again(self) -> None:
        """Make one attempt, after a back-off if earlier ones got no answer; give up when the time is over."""
        if self._attempts:
            threading.Event().wait(delay_seconds(self._attempts))
        else:
            self._since_us = self._clock.monotonic_us()
        self._attempts += 1
        error = self._open()
        self._failure = None if error is None else reason_of(error, self._failure)
        waited_ms = (self._clock.monotonic_us() - self._since_us) // 1_000
        if error is not None and (not is_temporary(error) or waited_ms >= self._limits.give_up_ms):
            self._give_up(self._failure or error)

    def _has_work(self) -> bool:
        if self._abandoned is not None:
            return True
        if self._sends is not None or (self._stream is None and self._reader is not None):
            return False
        return self._window.busy if self._stream is None else self._window.may_send

    def _open(self) -> FrazilError | None:
        """Open a new stream with all unanswered batches; or return why it cannot."""
        waited_ms = (self._clock.monotonic_us() - self._since_us) // 1_000
        if self._attempts > 1 and waited_ms >= self._limits.give_up_ms:  # streams open, but get no answers
            return self._failure or OwnerUnreachable(self._connection.address, "its streams end without an answer")
        with self._guard:
            schema = self._window.next_schema
        identity = self._identity
        try:
            opening = identity.opening(self._look)
            stream = PutStream(self._connection, self._topic, self._log_id, schema, identity.producer, opening)
        except FrazilError as error:
            return error
        with self._guard:
            stored, unknown, resent = self._sorted(stream, identity.opened(stream.epoch, stream.resumed))
        for batch, offset in stored:
            _acked(batch, offset)
        reason = "the owner no longer knows what this producer sent"
        _settle((part for batch in unknown for part in batch.parts), OutcomeUnknown(self._topic, reason))
        for batch in resent:
            if not batch.schema.equals(schema):
                stream.half_close()  # once the earlier batches are answered, the next stream has its columns
                break
            try:
                stream.write(batch)
            except FrazilError:
                break  # the reader gets the reason
        reader = threading.Thread(target=self._read, args=(stream,), name="frazil-answers", daemon=True)
        with self._guard:
            self._stream, self._reader = stream, reader
            reader.start()
        return None

    def _look(self) -> int:
        """Return the current epoch of the producer name."""
        asked = {"topic": self._topic, "log_id": self._log_id, "producer": self._identity.producer}
        return int(self._connection.act("producer", **asked)["epoch"])

    def _sorted(self, stream: PutStream, knows: bool) -> tuple[list[tuple[Batch, int]], list[Batch], list[Batch]]:
        """Sort the unanswered batches: stored, with the offset; unknown; and not stored, which are resent.

        The owner has finished all batches of older streams, and accepts no more from them: so missing batches are
        renumbered from the owner's next sequence. `knows` means that the owner knows them as this client's.
        """
        sent = self._window.take_sent()
        next_sequence = stream.next_sequence
        expected = self._refused_at if self._refused_at is not None else sent[0].sequence if sent else next_sequence
        self._refused_at, self._next_sequence = None, next_sequence
        forgotten, self._forgotten = self._forgotten, False
        if not forgotten and (not knows or next_sequence < expected):
            return [], sent, []
        stored, unknown, again = [], [], []
        for batch in sent:
            if forgotten or batch.sequence >= next_sequence:
                again.append(batch)
            elif (offset := stream.stored.get((batch.sequence, batch.count))) is not None:
                stored.append((batch, offset))
            else:
                unknown.append(batch)
        for batch in again:
            batch.sequence = self._next_sequence
            self._next_sequence += batch.count
            self._window.sent(batch)
        return stored, unknown, again

    def _give_up(self, error: FrazilError) -> None:
        with self._guard:
            if isinstance(error, ProducerFenced):
                self._identity.fence(error)
            sent = self._window.take_sent()
            waiting = self._window.take_waiting()
            self._refused_at, self._forgotten, self._attempts = None, False, 0
        says_enough = isinstance(error, TopicNotFound | LogFailed)
        unknown = error if says_enough else OutcomeUnknown(self._topic, error.message)
        _settle((part for batch in sent for part in batch.parts), unknown)
        _settle(waiting, error)

    # --- answers

    def _read(self, stream: PutStream) -> None:
        try:
            while (answer := stream.read()) is not None:
                self._answered(answer)
                self._connection.learn_brokers()
            error = stream.finish()
            if error is not None:
                _log.debug("a stream to %s ended: %s", self._topic, error)
        finally:
            with self._guard:
                if self._stream is stream:
                    self._stream = None
                self._reader = None
                self._changed.notify_all()

    def _answered(self, answer: dict[str, Any]) -> None:
        if "error" in answer:
            self._refused(int(answer["sequence"]), from_dict(answer["error"]))
            return
        settled = []
        with self._guard:
            self._attempts = 0
            for sequence, offset in answer["acked"]:
                settled.append((self._window.answered(sequence), offset))
            self._wake()
        for batch, offset in settled:
            if batch is not None:
                _acked(batch, offset)

    def _refused(self, sequence: int, error: FrazilError) -> None:
        """Handle a refusal. Later batches fail only with gaps, and a broker that closes or gives the topic away has
        refused nothing: both are resent.
        """
        with self._guard:
            behind = self._refused_at is not None and isinstance(error, SequenceGap)
            if behind or isinstance(error, Elsewhere):
                self._connection.learn(error, self._topic)
                return
            if isinstance(error, SequenceForgotten):  # it was not stored: uncertain batches were reported at the start
                self._forgotten = True
                return
            self._attempts = 0
            batch = self._window.answered(sequence)
            if self._refused_at is None:
                self._refused_at = sequence
            refused = list(batch.parts) if batch is not None else []
            if isinstance(error, ProducerFenced):  # permanent: all later batches have the same epoch
                self._identity.fence(error)
                refused += [part for behind in self._window.take_sent() for part in behind.parts]
                refused += self._window.take_waiting()
                self._refused_at = self._stream = None
        _settle(refused, error)


def _acked(batch: Batch, offset: int) -> None:
    """The parts of a batch have consecutive offsets."""
    for part in batch.parts:
        part.settle(offset, None)
        offset += part.count


def _settle(parts: Iterable[Part], error: FrazilError) -> None:
    for part in parts:
        part.settle(-1, error)

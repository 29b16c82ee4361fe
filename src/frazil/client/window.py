"""The queue of a sender: waiting rows and unanswered batches, both bounded. The sender guards it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from frazil.client.tracing import current_parent
from frazil.core.errors import EncodingFailed, Overloaded
from frazil.core.put_notes import (
    FEW_BYTES_MAX,
    FEW_ROWS_MAX,
    TRACES_MAX,
    WHOLE_BYTES_MAX,
    FewRow,
    few_note,
    piece_notes,
)
from frazil.core.rows import joined, message_batch
from frazil.core.settings import KIB, MIB
from frazil.log.write.group import MessageRow, Notify, Part
from frazil.log.write.publishing import GIVEN

FULL_BYTES = 64 * KIB
"""A batch of this size need not wait for the answers to earlier ones."""
AHEAD_MAX, SENT_MAX = 2, 32
"""Batches in flight: small ones, and full ones. The log remembers 64 per producer."""
SENT_BYTES_MAX = 16 * MIB
RETRY_AFTER_MS = 10


@dataclass(frozen=True, slots=True)
class SenderLimits:
    buffer_bytes_max: int
    batch_bytes_max: int
    batch_rows_max: int
    give_up_ms: int

    @property
    def together_bytes_max(self) -> int:
        """Rows of several callers are sent as one batch up to this size."""
        return min(WHOLE_BYTES_MAX, self.batch_bytes_max // 2)


class TracedPart(Part):
    """Rows of one or more callers, with the callers' spans by row."""

    __slots__ = ("traces",)

    def __init__(self, notify: Notify | None, batch: pa.RecordBatch | None = None, size_bytes: int = 0) -> None:
        super().__init__(notify, batch, size_bytes)
        self.traces: list[tuple[int, str]] = []

    def traced(self, row: int) -> None:
        """Attach the current caller's span, if there is one."""
        if len(self.traces) < TRACES_MAX and (parent := current_parent()) is not None:
            self.traces.append((row, parent))


@dataclass(slots=True)
class Batch:
    parts: Sequence[TracedPart]
    rows: pa.RecordBatch | list[FewRow]
    size_bytes: int
    time_us: int
    sequence: int = -1

    @property
    def count(self) -> int:
        return len(self.rows) if isinstance(self.rows, list) else int(self.rows.num_rows)

    @property
    def schema(self) -> pa.Schema:
        return GIVEN if isinstance(self.rows, list) else self.rows.schema

    def notes(self) -> Iterable[bytes]:
        """Return what is sent instead of an Arrow batch: one note of a few messages, or the pieces of a large batch."""
        if isinstance(self.rows, list):
            return (few_note(self.sequence, self.time_us, self.rows, self.traces),)
        return piece_notes(self.sequence, memoryview(self.rows.serialize()), self.traces)

    @property
    def traces(self) -> list[tuple[int, str]]:
        """Return the spans of all callers, by the first row of each."""
        found, first = [], 0
        for part in self.parts:
            found += [(first + row, parent) for row, parent in part.traces]
            first += part.count
        return found[:TRACES_MAX]


class Window:
    def __init__(self, limits: SenderLimits) -> None:
        self._limits = limits
        self._waiting: deque[TracedPart] = deque()
        self._waiting_bytes = 0
        self._sent_bytes = 0
        self._taken: list[TracedPart] = []
        self.in_flight: deque[Batch] = deque()

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self.in_flight)

    @property
    def may_send(self) -> bool:
        """Small batches wait for answers and grow meanwhile; large ones wait only for room."""
        if not self._waiting:
            return False
        ahead = len(self.in_flight)
        if ahead < AHEAD_MAX:
            return True
        return ahead < SENT_MAX and self._sent_bytes < SENT_BYTES_MAX and self._waiting_bytes >= FULL_BYTES

    @property
    def next_schema(self) -> pa.Schema:
        """The schema of the next batch."""
        if self.in_flight:
            return self.in_flight[0].schema
        first = self._waiting[0]
        return GIVEN if first.batch is None else first.batch.schema

    def add_message(self, message: MessageRow, size: int, notify: Notify | None) -> TracedPart:
        """Add a message and return its part: the last one, while that collects single messages of the same kind of
        caller.
        """
        self._admit(size)
        last = self._waiting[-1] if self._waiting else None
        limits = self._limits
        if (
            last is None
            or last.batch is not None
            or last.notify is not notify
            or last.size_bytes + size > limits.together_bytes_max
            or len(last.messages) >= limits.batch_rows_max
        ):
            last = TracedPart(notify)
            self._waiting.append(last)
        last.size_bytes += size
        last.traced(len(last.messages))
        last.messages.append(message)
        return last

    def add(self, part: TracedPart) -> None:
        self._admit(part.size_bytes)
        part.traced(0)
        self._waiting.append(part)

    def _admit(self, size: int) -> None:
        limit = self._limits.buffer_bytes_max
        held = self._waiting_bytes + self._sent_bytes
        if held and held + size > limit:
            raise Overloaded("publish", limit, RETRY_AFTER_MS)
        self._waiting_bytes += size

    def take(self) -> list[TracedPart]:
        """Take the parts of the next batch: as many of one schema as fit, at least one."""
        taken: list[TracedPart] = []
        self._taken = taken
        size = rows = 0
        while self._waiting:
            part = self._waiting[0]
            size, rows = size + part.size_bytes, rows + part.count
            fits = size <= self._limits.together_bytes_max and rows <= self._limits.batch_rows_max
            if taken and (not fits or not _schema(part).equals(_schema(taken[0]))):
                break
            taken.append(part)
            self._waiting.popleft()
        self._waiting_bytes -= sum(part.size_bytes for part in taken)
        return taken

    def undo_interrupted(self, *, others_send: bool) -> None:
        """Recover from an interrupted change: parts taken but not sent are queued again, and the sizes recounted.

        With `others_send`, another thread owns the parts that were taken.
        """
        if not others_send:
            there = {id(part) for part in self._waiting}
            there |= {id(part) for batch in self.in_flight for part in batch.parts}
            back = [part for part in self._taken if id(part) not in there and not part.done]
            self._waiting.extendleft(reversed(back))
            self._taken = []
        self._waiting = deque(part for part in self._waiting if part.count)
        self._waiting_bytes = sum(part.size_bytes for part in self._waiting)
        self._sent_bytes = sum(batch.size_bytes for batch in self.in_flight)

    def sent(self, batch: Batch) -> None:
        self.in_flight.append(batch)
        self._sent_bytes += batch.size_bytes
        self._taken = []

    def answered(self, sequence: int) -> Batch | None:
        """Remove and return the batch of that sequence, the oldest unanswered one; None if there is none."""
        if not self.in_flight or self.in_flight[0].sequence != sequence:
            return None
        batch = self.in_flight.popleft()
        self._sent_bytes -= batch.size_bytes
        return batch

    def take_sent(self) -> list[Batch]:
        taken = list(self.in_flight)
        self.in_flight.clear()
        self._sent_bytes = 0
        return taken

    def take_waiting(self) -> list[TracedPart]:
        taken = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return taken


def encoded(topic: str, parts: Sequence[TracedPart], now_us: int) -> Batch:
    """Encode the parts as one batch; if this fails (no memory), nothing was sent."""
    size_bytes = sum(part.size_bytes for part in parts)
    try:
        rows = _few(parts) if size_bytes <= FEW_BYTES_MAX else None
        return Batch(parts, rows or joined([_rows(part, now_us) for part in parts]), size_bytes, now_us)
    except (pa.ArrowException, MemoryError) as error:
        raise EncodingFailed(topic, str(error)) from error


def _few(parts: Sequence[Part]) -> list[FewRow] | None:
    """Return the messages if they are few enough to be sent without Arrow."""
    count = 0
    for part in parts:
        count += len(part.messages)
        if part.batch is not None or count > FEW_ROWS_MAX:
            return None
    rows = [row for part in parts for row in part.messages]
    if any(origin is not None for *_, origin in rows):
        return None
    return [FewRow(payload, key, dict(pairs) if pairs else None) for payload, key, pairs, _ in rows]


def _rows(part: Part, now_us: int) -> pa.RecordBatch:
    if part.batch is not None:
        return part.batch
    payloads, keys, attributes, origins = zip(*part.messages, strict=True)
    return message_batch(payloads, keys, attributes, origins, now_us).remove_column(0)


def _schema(part: Part) -> pa.Schema:
    return GIVEN if part.batch is None else part.batch.schema

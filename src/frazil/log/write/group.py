"""Appends that wait for the disk, collected into groups, and the callers that wait for them.

A group becomes one frame: one write, one sync. Single messages that arrive consecutively share a `Part`, held as plain
columns so that Arrow can convert them at once.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from frazil.core.errors import FrazilError
from frazil.core.rows import Origin, message_batch, with_append_time
from frazil.core.sequences import Sent
from frazil.core.settings import MIB

GROUP_BYTES_MAX = 4 * MIB
"""A group is closed at this size; a larger single batch is its own group."""

_SENT_BYTES = 64
"""Size of a batch's sequence data in its frame, without the producer's name."""

Notify = Callable[["Part"], None]
"""Called, from any thread, when a part is finished; its `tokens` identify the callers."""

MessageRow = tuple[bytes, bytes | None, list[tuple[str, str]] | None, Origin | None]
"""Payload, key, attributes, and origin if given."""
Rows: TypeAlias = "pa.RecordBatch | list[MessageRow]"


class Part:
    """Rows of one or many callers that get their offsets together, and that wait in the same way."""

    __slots__ = (
        "_guard",
        "_waiting",
        "batch",
        "done",
        "error",
        "fatal",
        "first_offset",
        "messages",
        "notify",
        "queued_at",
        "size_bytes",
        "tokens",
    )

    def __init__(self, notify: Notify | None, rows: Rows | None = None, size_bytes: int = 0) -> None:
        self.notify = notify
        self.batch: pa.RecordBatch | None = None if isinstance(rows, list) else rows
        self.size_bytes = size_bytes
        self.messages: list[MessageRow] = rows if isinstance(rows, list) else []
        self.tokens: list[Any] = []
        self.first_offset = -1
        self.error: FrazilError | None = None
        self.fatal: BaseException | None = None
        self.done = False
        self.queued_at = time.perf_counter()
        self._guard = threading.Lock()
        self._waiting: list[threading.Lock] = []

    @property
    def count(self) -> int:
        return len(self.messages) if self.batch is None else int(self.batch.num_rows)

    def rows(self, stored: pa.Schema, append_time_us: int) -> pa.RecordBatch:
        if self.batch is not None:
            return with_append_time(self.batch, stored, append_time_us)
        payloads, keys, attributes, origins = zip(*self.messages, strict=True)
        return message_batch(payloads, keys, attributes, origins, append_time_us)

    def wait(self) -> None:
        turn = threading.Lock()  # an event would do the same with three locks
        turn.acquire()
        with self._guard:
            if self.done:
                return
            self._waiting.append(turn)
        turn.acquire()

    def settle(self, first_offset: int, error: FrazilError | None, fatal: BaseException | None = None) -> None:
        """`fatal` is what ended the committer, such as a power cut in a test: waiting callers get it too."""
        with self._guard:
            self.first_offset = first_offset
            self.error = error
            self.fatal = fatal
            self.done = True
        for turn in self._waiting:  # no more are added: from now on `wait` sees that this part is done
            turn.release()
        if self.notify is not None:
            self.notify(self)

    def offset_at(self, index: int) -> int:
        """Return the offset of a finished row, or raise the error of the whole part."""
        if self.fatal is not None:
            raise self.fatal
        if self.error is not None:
            raise self.error
        return self.first_offset + index


class SentPart(Part):
    """A batch that its producer numbered. A duplicate sent while this one waits gets the same answer."""

    __slots__ = ("_echoes", "sent")

    def __init__(self, notify: Notify | None, rows: Rows, size_bytes: int, sent: Sent) -> None:
        super().__init__(notify, rows, size_bytes + len(sent.producer.encode()) + _SENT_BYTES)
        self.sent = sent
        self._echoes: list[Part] = []

    def echo(self, part: Part) -> None:
        """Finish another part like this one, now or later."""
        with self._guard:
            if not self.done:
                self._echoes.append(part)
                return
        part.settle(self.first_offset, self.error, self.fatal)

    def settle(self, first_offset: int, error: FrazilError | None, fatal: BaseException | None = None) -> None:
        super().settle(first_offset, error, fatal)
        for part in self._echoes:  # no more are added: from now on `echo` sees that this part is done
            part.settle(first_offset, error, fatal)


def call_on(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: object) -> None:
    """Call a function on a loop from another thread. A closed loop is ignored: nobody waits there any more."""
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:
        if not loop.is_closed():
            raise


def resolve_futures(part: Part) -> None:
    """Resolve the futures of event-loop callers, which are their tokens; runs on that loop.

    Runs for every message, so the common case only sets the result.
    """
    futures: list[asyncio.Future[int]] = part.tokens
    error = part.error
    for offset, future in enumerate(futures, part.first_offset):
        try:
            if error is None:
                future.set_result(offset)
            else:
                future.set_exception(error)
        except asyncio.InvalidStateError:
            continue  # its caller was cancelled


class GroupQueue:
    """Parts in arrival order; the caller limits their bytes. Not thread-safe: its log guards it."""

    __slots__ = ("_open", "_parts", "size_bytes")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self._open: Part | None = None  # the last part, if a single message may join it
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def count(self) -> int:
        return sum(part.count for part in self._parts)

    @property
    def oldest_at(self) -> float:
        """When the first of the parts was queued; there must be one."""
        return self._parts[0].queued_at

    def open_part(self, notify: Notify | None) -> Part:
        """Return the part that the next single message joins."""
        part = self._open
        if part is not None and part.notify is notify and part.size_bytes < GROUP_BYTES_MAX:
            return part
        part = Part(notify)
        self._parts.append(part)
        self._open = part
        return part

    def add(self, part: Part) -> None:
        self._open = None
        self._parts.append(part)
        self.size_bytes += part.size_bytes

    def undo_interrupted(self, part: Part | None) -> None:
        """Undo a half-done addition after a caller was interrupted while it added a message to `part`, or `part` as a
        batch.
        """
        if part is not None and part.notify is not None and type(part) is Part and part.batch is None:
            del part.messages[len(part.tokens) :]  # a message without its token would shift the answers of the others
        self._open = None
        is_batch = isinstance(part, SentPart) or (part is not None and part.batch is not None)
        self._parts = [one for one in self._parts if one.count and not (is_batch and one is part)]
        self.size_bytes = sum(one.size_bytes for one in self._parts)

    def remove(self, parts: Sequence[Part]) -> None:
        """Remove parts that can no longer be stored."""
        self._parts = [part for part in self._parts if part not in parts]
        self.size_bytes -= sum(part.size_bytes for part in parts)

    def take_group(self) -> list[Part]:
        """Take the parts of the next frame: as many as fit, at least one."""
        count, size_bytes = 0, 0
        for part in self._parts:
            if count and size_bytes + part.size_bytes > GROUP_BYTES_MAX:
                break
            count += 1
            size_bytes += part.size_bytes
        self._open = None
        group, self._parts = self._parts[:count], self._parts[count:]
        self.size_bytes -= size_bytes
        return group

    def take_all(self) -> list[Part]:
        self._open = None
        parts, self._parts, self.size_bytes = self._parts, [], 0
        return parts

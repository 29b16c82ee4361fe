"""What waits for the disk: appends gathered into groups, and the callers that wait for them.

A group becomes one frame: one write, one sync. Single messages that arrive next to each other share a `Part`,
held as plain columns so that Arrow can take them over at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from frazil.core.errors import FrazilError
from frazil.core.rows import message_batch, with_append_time
from frazil.core.settings import MIB

GROUP_BYTES_MAX = 4 * MIB
"""A group is closed at this size; a larger single batch is a group of its own."""

Notify = Callable[["Part", list[Any]], None]


class Part:
    """Rows of one or many callers that get their offsets together."""

    __slots__ = (
        "_event", "_guard", "_listeners", "attributes", "batch", "count", "done", "error", "first_offset",
        "keys", "payloads", "publish_times_us", "size_bytes",
    )  # fmt: skip

    def __init__(self, batch: pa.RecordBatch | None = None, size_bytes: int = 0) -> None:
        self.batch = batch
        self.count: int = batch.num_rows if batch is not None else 0
        self.size_bytes = size_bytes
        self.payloads: list[bytes] = []
        self.keys: list[bytes | None] | None = None
        self.attributes: list[list[tuple[str, str]] | None] | None = None
        self.publish_times_us: list[int] = []
        self.first_offset = -1
        self.error: FrazilError | None = None
        self.done = False
        self._guard = threading.Lock()
        self._event: threading.Event | None = None
        self._listeners: dict[Notify, list[Any]] | None = None

    def add(
        self,
        payload: bytes,
        key: bytes | None,
        attributes: list[tuple[str, str]] | None,
        publish_time_us: int,
        size_bytes: int,
    ) -> int:
        """One more message; returns its index in the part."""
        index = self.count
        self.payloads.append(payload)
        if key is not None and self.keys is None:
            self.keys = [None] * index
        if self.keys is not None:
            self.keys.append(key)
        if attributes and self.attributes is None:
            self.attributes = [None] * index
        if self.attributes is not None:
            self.attributes.append(attributes or None)
        self.publish_times_us.append(publish_time_us)
        self.size_bytes += size_bytes
        self.count = index + 1
        return index

    def rows(self, stored: pa.Schema, append_time_us: int) -> pa.RecordBatch:
        if self.batch is not None:
            return with_append_time(self.batch, stored, append_time_us)
        return message_batch(self.payloads, self.keys, self.attributes, self.publish_times_us, append_time_us)

    def listen(self, notify: Notify, token: Any) -> None:
        """Have `notify(part, tokens)` called once when the part is settled, from whatever thread settles it."""
        with self._guard:
            if not self.done:
                if self._listeners is None:
                    self._listeners = {}
                self._listeners.setdefault(notify, []).append(token)
                return
        notify(self, [token])

    def wait(self) -> None:
        with self._guard:
            if self.done:
                return
            if self._event is None:
                self._event = threading.Event()
            event = self._event
        event.wait()

    def settle(self, first_offset: int, error: FrazilError | None) -> None:
        with self._guard:
            self.first_offset = first_offset
            self.error = error
            self.done = True
            event, listeners = self._event, self._listeners
        if event is not None:
            event.set()
        if listeners is not None:
            for notify, tokens in listeners.items():
                notify(self, tokens)

    def offset_at(self, index: int) -> int:
        """The offset of a settled row, or the error that met the whole part."""
        if self.error is not None:
            raise self.error
        return self.first_offset + index


class GroupQueue:
    """Parts in the order of their arrival, bounded in bytes by the caller. Not thread-safe: its log guards it."""

    __slots__ = ("_parts", "size_bytes")

    def __init__(self) -> None:
        self._parts: list[Part] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._parts)

    def open_part(self) -> Part:
        """The part that the next single message joins."""
        if self._parts:
            last = self._parts[-1]
            if last.batch is None and last.size_bytes < GROUP_BYTES_MAX:
                return last
        part = Part()
        self._parts.append(part)
        return part

    def add(self, part: Part) -> None:
        self._parts.append(part)

    def take_group(self) -> list[Part]:
        """The parts of the next frame: as many as fit, at least one."""
        count, size_bytes = 0, 0
        for part in self._parts:
            if count and size_bytes + part.size_bytes > GROUP_BYTES_MAX:
                break
            count += 1
            size_bytes += part.size_bytes
        group, self._parts = self._parts[:count], self._parts[count:]
        self.size_bytes -= size_bytes
        return group

    def take_all(self) -> list[Part]:
        parts, self._parts, self.size_bytes = self._parts, [], 0
        return parts

"""A topic of a folder that another process serves: read beside it, from what it says is durable, back into the table.

The owner is asked how far the log is; rows come from its files where they are at hand, else through it. Followers ask
again every `reader.poll_interval_ms`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.flight

from frazil.core.errors import (
    CorruptLog,
    OffsetOutOfRange,
    OwnerUnreachable,
    TopicDiffers,
    TopicNotFound,
)
from frazil.core.extras import needs
from frazil.core.offsets import OffsetRange
from frazil.core.rows import APPEND_TIME, ENVELOPE
from frazil.core.settings import Settings
from frazil.log.info import LogInfo
from frazil.log.positions import Start, check_start, time_us
from frazil.topics.logs import OwnerView

if TYPE_CHECKING:  # PyIceberg takes a second to import, and most never read a table
    from frazil.lake.history import TableHistory


class ServedTopic:
    """One log, as its owner tells of it. It has what a reader needs, and nothing that writes."""

    def __init__(self, settings: Settings, view: OwnerView, name: str) -> None:
        self._settings = settings
        self._view = view
        self._log_id: str | None = None
        self.name = name
        info = self.look()
        self._log_id = info.log_id
        self._stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
        self._history: TableHistory | None = None

    @property
    def schema(self) -> pa.Schema | None:
        """The own columns of a typed topic; None for a message topic."""
        if self._stored.equals(ENVELOPE):
            return None
        return pa.schema([field for field in self._stored if field.name != APPEND_TIME.name])

    def read_batches(self, start: Start = "earliest", *, end: int | None = None, follow: bool = False) -> ServedBatches:
        """Arrow batches from `start` up to `end`, or what is durable now; with `follow`, also all that comes."""
        check_start(start)
        info = self.look()
        stop = end if follow else info.durable_end if end is None else min(end, info.durable_end)
        return ServedBatches(self, self._resolve(info, start), stop, self._settings.reader.poll_interval_ms)

    def look(self) -> LogInfo:
        """What the owner says now of the same log."""
        for info in self._view.logs():
            if str(info.topic) == self.name:
                if self._log_id in (None, info.log_id):
                    return info
                if any(one.log_id == self._log_id for one in info.former):
                    raise TopicDiffers(self.name, "it was renumbered: open it again, and read from the offset wanted")
                raise TopicNotFound(self.name, "it was deleted, and another was made under its name; read that one")
        raise TopicNotFound(self.name)

    def rows(self, info: LogInfo, start: int, end: int | None) -> Iterator[pa.RecordBatch]:
        """From one tier as far as it goes: the log where it has the offset, else the table."""
        stop = info.durable_end if end is None else min(end, info.durable_end)
        if start >= info.first_offset:
            return self._view.read(info, OffsetRange(start, stop))
        older = self._older(info)
        stored = pa.ipc.read_schema(pa.py_buffer(info.stored_schema))
        return iter(()) if older is None else older.read(start, min(stop, info.first_offset), stored)

    def first_offset(self, info: LogInfo) -> int:
        older = self._older(info) if info.first_offset else None
        span = None if older is None else older.span()
        return info.first_offset if span is None else min(span.start, info.first_offset)

    def _resolve(self, info: LogInfo, start: Start) -> int:
        if start == "latest":
            return info.durable_end
        if isinstance(start, datetime):
            return self._offset_at(info, time_us(start))
        first = self.first_offset(info)
        if start == "earliest":
            return first
        assert isinstance(start, int)
        if not first <= start <= info.durable_end:
            raise OffsetOutOfRange(self.name, start, first, info.durable_end)
        return start

    def _offset_at(self, info: LogInfo, wanted_us: int) -> int:
        older = self._older(info) if info.first_offset else None
        found = None if older is None else older.offset_at_time(wanted_us)
        if found is not None and found < info.first_offset:
            return found
        if info.first_offset < info.durable_end:
            for batch in self.rows(info, info.first_offset, None):
                times = batch.column(APPEND_TIME.name).cast(pa.int64()).to_numpy()
                if times[-1] >= wanted_us:
                    return int(batch.column(0)[0].as_py() + np.searchsorted(times, wanted_us))
        return info.durable_end

    def _older(self, info: LogInfo) -> TableHistory | None:
        if self._history is None:
            with needs():
                from frazil.lake.history import TableHistories
            self._history = TableHistories(self._settings).of(info.topic, info.log_id)
        return self._history


class ServedBatches(Iterator[pa.RecordBatch]):
    """Batches from an offset on, until `end`, or without end. Not to be shared between threads."""

    def __init__(self, topic: ServedTopic, start: int, end: int | None, poll_interval_ms: int) -> None:
        self._topic = topic
        self._end = end
        self._poll_interval_ms = poll_interval_ms
        self._rows: Iterator[pa.RecordBatch] | None = None
        self.offset = start

    def __next__(self) -> pa.RecordBatch:
        while self._end is None or self.offset < self._end:
            if self._rows is None:
                info = self._topic.look()
                if self.offset >= info.durable_end:
                    threading.Event().wait(self._poll_interval_ms / 1_000)
                    continue
                self._rows = self._topic.rows(info, self.offset, self._end)
            batch = self._next(self._rows)
            if batch is not None:
                self.offset = batch.column(0)[-1].as_py() + 1
                return batch
        self.close()
        raise StopIteration

    def close(self) -> None:
        closing = getattr(self._rows, "close", None)
        self._rows = None
        if closing is not None:
            closing()

    def _next(self, rows: Iterator[pa.RecordBatch]) -> pa.RecordBatch | None:
        """None where a tier ends, or its rows were moved and removed meanwhile: then the owner is asked anew."""
        try:
            batch = next(rows, None)
        except (CorruptLog, OSError, pa.flight.FlightError) as error:
            self.close()
            if self._topic.look().first_offset > self.offset:
                return None
            if isinstance(error, pa.flight.FlightError):
                raise OwnerUnreachable("its Flight door", str(error).splitlines()[0]) from None
            raise
        if batch is None:
            self.close()
            end = max(self.offset, int(getattr(rows, "offset", self.offset)))  # over a gap that a person has accepted
            info = self._topic.look()
            if end == self.offset and self.offset < info.first_offset:
                raise OffsetOutOfRange(self._topic.name, self.offset, self._topic.first_offset(info), info.durable_end)
            self.offset = end
        return batch

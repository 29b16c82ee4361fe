"""Topics read through the catalog alone: by a process that has neither the log nor its owner.

It sees a row once the mover has committed it. Followers ask the catalog every `reader.poll_interval_ms`. What is wrong
is raised, and the reader stays where it is: ask it again once things are mended, and it goes on from there.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from frazil.core.clock import SystemClock
from frazil.core.coverage import total, without
from frazil.core.errors import Closed, OffsetOutOfRange, SchemaMismatch
from frazil.core.extras import needs
from frazil.core.names import TopicName
from frazil.core.own_process import OwnProcess
from frazil.core.settings import Settings, settings_of
from frazil.log.positions import Start, check_end, check_start, time_us
from frazil.log.stats import TableTier, Tiers
from frazil.log.topic import MessageReader

if TYPE_CHECKING:  # PyIceberg takes a second to import
    from frazil.lake.history import HistoryReader
    from frazil.lake.topics import TableTopic, TableTopics

_FORKED = "open it in each process, started with multiprocessing's spawn"


def open_read_only(where: str | os.PathLike[str] | Settings | Mapping[str, Any]) -> ReadOnlyStorage:
    """Topics as the catalog of the settings has them. Nothing is made, owned or locked.

    `where` is a `Settings`, a mapping as a settings file holds it, such a file (`.yaml`), or a data folder.
    """
    with needs():
        from frazil.lake.topics import TableTopics
    settings = settings_of(where)
    return ReadOnlyStorage(TableTopics(settings), settings.reader.poll_interval_ms)


@dataclass(frozen=True, slots=True)
class ReadOnlyStats:
    """Figures of one topic in its table. `end` is how far the table has it; the log may be ahead."""

    topic: str
    table: str
    log_id: str
    typed: bool
    messages: int
    bytes: int
    first_offset: int
    end: int
    snapshot_id: int | None
    committed_ms: int | None
    tiers: Tiers

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class ReadOnlyStorage:
    """The topics of a catalog, from any thread. Closing it ends all that follow."""

    def __init__(self, tables: TableTopics, poll_interval_ms: int) -> None:
        self._tables = tables
        self._poll_interval_ms = poll_interval_ms
        self._closed = threading.Event()
        self._process = OwnProcess("the read-only storage", _FORKED)

    def topics(self) -> list[str]:
        """The names of all topics that have rows in a table, sorted."""
        self._process.check()
        return [str(name) for name in self._tables.names()]

    def topic(self, name: str) -> ReadOnlyTopic:
        self._process.check()
        found = self._tables.find(TopicName.parse(name))
        return ReadOnlyTopic(self._tables, found, self._closed, self._process, self._poll_interval_ms)

    def close(self) -> None:
        self._closed.set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ReadOnlyTopic:
    """One topic, from as many threads as you like. It is of one log: a topic made anew has to be opened anew."""

    def __init__(
        self,
        tables: TableTopics,
        found: TableTopic,
        closed: threading.Event,
        process: OwnProcess,
        poll_interval_ms: int,
    ) -> None:
        self._tables = tables
        self._found = found
        self._closed = closed
        self._process = process
        self.poll_interval_ms = poll_interval_ms

    @property
    def name(self) -> str:
        return str(self._found.topic)

    @property
    def schema(self) -> pa.Schema | None:
        """The own columns of a typed topic as its table has them; None for a message topic."""
        return self._found.own

    def read(self, start: Start = "earliest", *, end: int | None = None, follow: bool = False) -> ReadOnlyMessages:
        """Messages from `start` up to `end`, or what the table has now; with `follow`, also all that it gets."""
        self.check_is_message_topic()
        return ReadOnlyMessages(self.read_batches(start, end=end, follow=follow))

    def read_batches(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> ReadOnlyBatches:
        """The same as Arrow batches, each row with its `_offset` and `_append_time`."""
        check_start(start)
        check_end(end)
        found = self.look()
        at = self._resolve(found, start)
        stop = end if follow else found.end if end is None else min(end, found.end)
        return ReadOnlyBatches(self, at, stop)

    def stats(self) -> ReadOnlyStats:
        found = self.look()
        span, gaps, size = self._tables.size_bytes(found)
        held = () if span is None else without(span, gaps)
        now_us = SystemClock().now_us()
        first, rows = held[0].start if held else found.end, total(held)
        snapshot_id, committed_ms = found.snapshot_id, found.committed_ms
        tier = TableTier(
            held[0].start if held else None, found.end, rows, size, None, None, now_us, None, str(found.table),
            snapshot_id, committed_ms,
        )  # fmt: skip
        return ReadOnlyStats(
            topic=self.name,
            table=str(found.table),
            log_id=found.log_id,
            typed=found.own is not None,
            messages=rows,
            bytes=size,
            first_offset=first,
            end=found.end,
            snapshot_id=snapshot_id,
            committed_ms=committed_ms,
            tiers=Tiers(None, tier),
        )

    def check_is_message_topic(self) -> None:
        if self.schema is not None:
            raise SchemaMismatch(f"{self.name} is a typed topic: use read_batches")

    # --- for its readers

    def look(self) -> TableTopic:
        """The topic as its table has it now."""
        self.check_process()
        if self._closed.is_set():
            raise Closed("the read-only storage")
        return self._tables.find(self._found.topic, self._found.log_id)

    def check_process(self) -> None:
        """A forked child has the catalog's connections without the threads that read ahead."""
        self._process.check()

    def rows(self, found: TableTopic, start: int, end: int | None) -> HistoryReader:
        stop = found.end if end is None else min(end, found.end)
        return self._tables.history(found).read(start, stop, found.stored)

    def wait(self) -> None:
        """Until it is time to look again; `Closed` if there is no more to come."""
        self.check_process()
        if self._closed.wait(self.poll_interval_ms / 1_000):
            raise Closed("the read-only storage")

    def _resolve(self, found: TableTopic, start: Start) -> int:
        if start == "latest":
            return found.end
        history = self._tables.history(found)
        if isinstance(start, datetime):
            at = history.offset_at_time(time_us(start))
            return found.end if at is None else at
        span = history.span()
        first = found.end if span is None else span.start
        if start == "earliest":
            return first
        assert isinstance(start, int)
        if not first <= start <= found.end:
            raise OffsetOutOfRange(self.name, start, first, found.end)
        return start


class ReadOnlyBatches(Iterator[pa.RecordBatch]):
    """Batches from an offset on, until `end`, or without end. Not to be shared between threads."""

    def __init__(self, topic: ReadOnlyTopic, start: int, end: int | None) -> None:
        self._topic = topic
        self._end = end
        self._rows: HistoryReader | None = None
        self.offset = start

    @property
    def finished(self) -> bool:
        return self._end is not None and self.offset >= self._end

    def poll(self) -> pa.RecordBatch | None:
        """The next batch if the table has one now."""
        self._topic.check_process()
        if self._rows is None:
            if self.finished:
                return None
            found = self._topic.look()
            if found.end <= self.offset:
                return None
            self._rows = self._topic.rows(found, self.offset, self._end)
        try:
            batch = next(self._rows, None)
        except BaseException:
            self.close()
            raise
        self.offset = max(self.offset, self._rows.offset)
        if batch is None:
            self.close()
        return batch

    def __next__(self) -> pa.RecordBatch:
        while True:
            at = self.offset
            batch = self.poll()
            if batch is not None:
                return batch
            if self.finished:
                self.close()
                raise StopIteration
            if self.offset == at:
                self.wait()

    def wait(self) -> None:
        """Until it is time to look again; `Closed` if there is no more to come."""
        self._topic.wait()

    @property
    def poll_interval_ms(self) -> int:
        return self._topic.poll_interval_ms

    def close(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None


class ReadOnlyMessages(MessageReader):
    def __init__(self, batches: ReadOnlyBatches) -> None:
        super().__init__(batches)
        self._looking = batches

    def wait(self) -> None:
        """Until it is time to look again; `Closed` if there is no more to come."""
        self._looking.wait()

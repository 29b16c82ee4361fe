"""Topics read through the catalog and the object store, by a process that has neither the log nor its owner.

It sees a row once the mover has committed it; with the object tier, once it is uploaded. Followers poll every
`reader.poll_interval_ms`. Errors are raised, and the reader keeps its position: call it again once the problem is
fixed, and it continues from there.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from frazil.core.clock import SystemClock
from frazil.core.coverage import total, without
from frazil.core.errors import Closed, SchemaMismatch
from frazil.core.extras import needs
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.process.own_process import OwnProcess
from frazil.core.settings import Settings, settings_of
from frazil.core.tiers import Extent, Gone, Tier, TierBatches, TierWalk
from frazil.log.read.positions import Start, check_end, check_start, resolve
from frazil.log.stats import TableTierFigures, Tiers
from frazil.log.topic import MessageReader
from frazil.node.tiers.objects import open_object_logs

if TYPE_CHECKING:  # PyIceberg takes a second to import
    from frazil.lake.read.tier import TableTier
    from frazil.lake.tables.topics import TableTopic, TableTopics
    from frazil.node.tiers.uploaded import UploadedRows
    from frazil.objects.known import KnownLog, ObjectsOfLogs

_FORKED = "open it in each process, started with multiprocessing's spawn"


def open_read_only(where: str | os.PathLike[str] | Settings | Mapping[str, Any]) -> ReadOnlyStorage:
    """Read topics through the catalog of the settings. Nothing is created, owned or locked.

    `where` is a `Settings`, an equivalent mapping, a settings file (`.yaml`), or a data folder.
    """
    with needs():
        from frazil.lake.tables.topics import TableTopics
    settings = settings_of(where)
    with contextlib.ExitStack() as opened:
        objects = opened.enter_context(open_object_logs(settings))
        return ReadOnlyStorage(TableTopics(settings), settings.reader.poll_interval_ms, objects, opened.pop_all())


@dataclass(frozen=True, slots=True)
class ReadOnlyStats:
    """Figures of one topic in its table. `end` is the table's end; the log may be ahead."""

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
    """The topics of a catalog. Thread-safe. Closing it ends all followers."""

    def __init__(
        self,
        tables: TableTopics,
        poll_interval_ms: int,
        objects: ObjectsOfLogs | None,
        opened: contextlib.ExitStack,
    ) -> None:
        """`opened` is closed with the storage."""
        self._tables = tables
        self._poll_interval_ms = poll_interval_ms
        self._objects = objects
        self._opened = opened
        self._closed = threading.Event()
        self._process = OwnProcess("the read-only storage", _FORKED)

    def topics(self) -> list[str]:
        """Return the names of all topics with rows in a table, sorted."""
        self._process.check()
        return [str(name) for name in self._tables.names()]

    def topic(self, name: str) -> ReadOnlyTopic:
        self._process.check()
        found = self._tables.find(TopicName.parse(name))
        known = None if self._objects is None else self._objects.of(found.log_id)
        return ReadOnlyTopic(self._tables, found, known, self._closed, self._process, self._poll_interval_ms)

    def close(self) -> None:
        self._closed.set()
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ReadOnlyTopic:
    """One topic. Thread-safe. It belongs to one log: a recreated topic has to be opened again."""

    def __init__(
        self,
        tables: TableTopics,
        found: TableTopic,
        objects: KnownLog | None,
        closed: threading.Event,
        process: OwnProcess,
        poll_interval_ms: int,
    ) -> None:
        self._tables = tables
        self._found = found
        self._objects = objects
        self._closed = closed
        self._process = process
        self.poll_interval_ms = poll_interval_ms

    @property
    def name(self) -> str:
        return str(self._found.topic)

    @property
    def schema(self) -> pa.Schema | None:
        """The columns of a typed topic as its table has them; None for a message topic."""
        return self._found.own

    def read(self, start: Start = "earliest", *, end: int | None = None, follow: bool = False) -> ReadOnlyMessages:
        """Read messages from `start` up to `end`, by default the current end of table and objects; with `follow`, also
        later ones."""
        self.check_is_message_topic()
        return ReadOnlyMessages(self.read_batches(start, end=end, follow=follow))

    def read_batches(
        self, start: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> ReadOnlyBatches:
        """Read Arrow batches; each row has its `_offset` and `_append_time`."""
        check_start(start)
        check_end(end)
        found, uploaded = self.look(), self.uploaded()
        now_end = found.end if uploaded is None else max(found.end, uploaded.end)
        tiers: list[Tier] = [self.tier(found)] if uploaded is None else [uploaded, self.tier(found)]
        at = resolve(self.name, tiers, start, now_end)
        stop = end if follow else now_end if end is None else min(end, now_end)
        return ReadOnlyBatches(self, at, stop)

    def stats(self) -> ReadOnlyStats:
        found = self.look()
        span, gaps, size = self._tables.size_bytes(found)
        held = () if span is None else without(span, gaps)
        now_us = SystemClock().now_us()
        first, rows = held[0].start if held else found.end, total(held)
        snapshot_id, committed_ms = found.snapshot_id, found.committed_ms
        tier = TableTierFigures(
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
        """Load the topic from its table."""
        self.check_process()
        if self._closed.is_set():
            raise Closed("the read-only storage")
        return self._tables.find(self._found.topic, self._found.log_id)

    def check_process(self) -> None:
        """A forked child has the catalog's connections without the prefetching threads."""
        self._process.check()

    def tier(self, found: TableTopic) -> TableTier:
        with needs():
            from frazil.lake.read.tier import TableTier
        return TableTier(self._tables.history(found), found.stored)

    def uploaded(self) -> UploadedRows | None:
        """Return the rows in objects, read in the form of the table; None without the object tier."""
        if self._objects is None:
            return None
        from frazil.node.tiers.uploaded import UploadedRows

        return UploadedRows(self._objects, self._found.stored)

    def wait(self) -> None:
        """Wait until the next poll; raises `Closed` if there is no more to come."""
        self.check_process()
        if self._closed.wait(self.poll_interval_ms / 1_000):
            raise Closed("the read-only storage")


class CommittedRows:
    """A tier of a topic that is read through the catalog: the rows of its table that are committed now."""

    is_in_memory = False

    def __init__(self, topic: ReadOnlyTopic) -> None:
        self._topic = topic

    def may_hold(self, offset: int) -> bool:  # noqa: ARG002 - known only after loading the table
        return True

    def extent(self) -> Extent | None:
        return self._topic.tier(self._topic.look()).extent()

    def find(self, time_us: int) -> int | None:
        return self._topic.tier(self._topic.look()).find(time_us)

    def batches(self, wanted: OffsetRange) -> TierBatches:
        found = self._topic.look()
        if found.end <= wanted.start:
            raise Gone(wanted.start)
        return self._topic.tier(found).batches(OffsetRange(wanted.start, min(wanted.end, found.end)))


class ReadOnlyBatches(TierWalk, Iterator[pa.RecordBatch]):
    """Batches from an offset up to `end`, or without end. Not thread-safe."""

    def __init__(self, topic: ReadOnlyTopic, start: int, end: int | None) -> None:
        uploaded, committed = topic.uploaded(), CommittedRows(topic)
        super().__init__((committed,) if uploaded is None else (uploaded, committed), start, end)
        self._topic = topic

    def poll(self) -> pa.RecordBatch | None:
        """Return the next batch if the table has one now."""
        self._topic.check_process()
        try:
            return self.step()
        except Gone:
            return None

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
        """Wait until the next poll; raises `Closed` if there is no more to come."""
        self._topic.wait()

    @property
    def poll_interval_ms(self) -> int:
        return self._topic.poll_interval_ms


class ReadOnlyMessages(MessageReader):
    def __init__(self, batches: ReadOnlyBatches) -> None:
        super().__init__(batches)
        self._looking = batches

    def wait(self) -> None:
        """Wait until the next poll; raises `Closed` if there is no more to come."""
        self._looking.wait()

"""A data folder and its topics. One process owns it at a time."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

import pyarrow as pa

from frazil.core.clock import Clock, SystemClock
from frazil.core.disk import Disk, LocalDisk
from frazil.core.errors import Closed, FrazilError, SchemaMismatch, TopicExists, TopicNotFound
from frazil.core.memory_disk import MemoryDisk
from frazil.core.names import TopicName
from frazil.core.rows import check_change, check_own_schema
from frazil.core.settings import RetentionSettings, Settings
from frazil.log.budget import DiskBudget
from frazil.log.cache import ReplayCache
from frazil.log.catalog import TopicCatalog, TopicRecord, TopicRecorder
from frazil.log.context import LogContext, OpenFiles
from frazil.log.history import HistoryOf
from frazil.log.keeper import Keeper
from frazil.log.metrics import LogMetrics
from frazil.log.ownership import release_ownership, take_ownership
from frazil.log.pool import CommitPool
from frazil.log.recovery import recover
from frazil.log.topic import Topic
from frazil.log.topic_log import TopicLog

MAINTAIN_INTERVAL_MS = 5_000

_log = logging.getLogger("frazil.log")


def open_storage(
    where: str | os.PathLike[str] | Settings | None,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    history_of: HistoryOf = lambda _: None,
) -> Storage:
    """Open a data folder, made if it is not there; `None` keeps everything in memory.

    `history_of` finds the rows that a log no longer has. `disk` and `clock` are for tests that take over time and
    failure.
    """
    settings = where if isinstance(where, Settings) else Settings.of_folder(where)
    if disk is None:
        disk = MemoryDisk() if settings.data is None else LocalDisk()
    return Storage(settings, disk, clock or SystemClock(), history_of)


class Storage:
    def __init__(self, settings: Settings, disk: Disk, clock: Clock, history_of: HistoryOf = lambda _: None) -> None:
        self.settings = settings
        self._history_of = history_of
        self._locks = take_ownership(disk, settings)
        try:
            disk.make_folder(settings.log_folder)
            self._catalog = TopicCatalog(disk, settings.log_folder)
            budget = DiskBudget(settings.wal.disk_bytes_max)
            budget.found(self._catalog.size_bytes)
        except BaseException:
            release_ownership(self._locks)
            raise
        self._context = LogContext(
            settings.wal,
            disk,
            clock,
            budget,
            ReplayCache(settings.wal.cache_capacity),
            CommitPool(settings.wal.committers),
            Keeper(clock),
            OpenFiles(settings.wal.open_files_max),
            LogMetrics(),
        )
        self._guard = threading.RLock()
        self._topics: dict[TopicName, Topic] = {}
        self._closed = False
        self.floor_of: Callable[[TopicLog], int | None] = lambda _: None
        self._context.keeper.call_in(MAINTAIN_INTERVAL_MS, self._maintain_again)

    # --- topics

    def topic(self, name: str, *, schema: pa.Schema | None = None, create: bool = True) -> Topic:
        """The topic of that name, made if it is not there. With `schema` it is a typed topic of these columns."""
        parsed = TopicName.parse(name)
        with self._guard:
            self._check_open()
            topic = self._topics.get(parsed)
            if topic is None:
                if parsed in self._catalog:
                    topic = self._open_topic(parsed)
                elif create:
                    return self.create_topic(name, schema=schema)
                else:
                    raise TopicNotFound(str(parsed))
        if schema is not None and (topic.schema is None or not topic.schema.equals(schema)):
            raise SchemaMismatch(
                f"{parsed} exists with another schema; change it with change_schema", topic=str(parsed)
            )
        return topic

    def create_topic(
        self, name: str, *, schema: pa.Schema | None = None, retention: RetentionSettings | None = None
    ) -> Topic:
        """A new topic, or `TopicExists`."""
        parsed = TopicName.parse(name)
        if schema is not None:
            check_own_schema(schema)
            schema = schema.remove_metadata()
        with self._guard:
            self._check_open()
            if parsed in self._catalog:
                raise TopicExists(str(parsed))
            self._catalog.create(TopicRecord.new(parsed, self._context.clock.now_us(), schema, retention))
            return self._open_topic(parsed)

    def change_schema(self, name: str, schema: pa.Schema) -> Topic:
        """Give a typed topic new nullable columns or wider types; rows stored before are read in the new form."""
        check_own_schema(schema)
        schema = schema.remove_metadata()
        with self._guard:
            topic = self.topic(name, create=False)
            if topic.schema is None:
                raise SchemaMismatch(f"{name} is a message topic: its columns are fixed")
            check_change(topic.schema, schema)
            self._catalog.update(topic.log.name, lambda record: record.with_schema(schema))
            topic.log.change_schema(schema)
            return topic

    def set_retention(self, name: str, retention: RetentionSettings | None) -> None:
        """A retention of the topic's own; None goes back to the settings'."""
        with self._guard:
            topic = self.topic(name, create=False)
            self._catalog.update(topic.log.name, lambda record: record.with_retention(retention))
            topic.log.retention = retention or self.settings.wal.retention

    def delete_topic(self, name: str) -> None:
        """Remove a topic and all its rows. A topic made again under the name has nothing to do with it."""
        parsed = TopicName.parse(name)
        with self._guard:
            self._check_open()
            if parsed not in self._catalog:
                raise TopicNotFound(str(parsed))
            topic = self._topics.pop(parsed, None)
            if topic is not None:
                topic.log.close()
                self._context.cache.forget(topic.log.cache)
            self._context.budget.give_back(self._catalog.delete(parsed))

    def record(self, name: str) -> TopicRecord:
        """What the topic was made with, and what was set for it since."""
        parsed = TopicName.parse(name)
        with self._guard:
            self._check_open()
            if parsed not in self._catalog:
                raise TopicNotFound(str(parsed))
            return self._catalog.read(parsed)

    def topics(self) -> list[str]:
        """The names of all topics, sorted."""
        with self._guard:
            self._check_open()
            return [str(name) for name in sorted(self._catalog.names())]

    # --- the whole folder

    @property
    def metrics(self) -> LogMetrics:
        return self._context.metrics

    @property
    def budget(self) -> DiskBudget:
        return self._context.budget

    @property
    def cache(self) -> ReplayCache:
        return self._context.cache

    def opened_topics(self) -> list[Topic]:
        with self._guard:
            return list(self._topics.values())

    def maintain(self) -> None:
        """Rotate by age, remove what is past its retention, and record how far each log reaches."""
        for topic in self.opened_topics():
            try:
                removed = topic.log.maintain(self.floor_of(topic.log))
            except (OSError, FrazilError) as error:  # the other topics have their turn all the same
                _log.warning("maintenance of %s failed, and is tried again: %s", topic.name, error)
            else:
                if removed:
                    _log.info("removed %d bytes of %s, past its retention", removed, topic.name)
        with self._guard:
            if not self._closed:
                self._record_ends()

    def close(self) -> None:
        """Finish what was queued, make it durable, and give the folder back."""
        with self._guard:
            if self._closed:
                return
            self._closed = True
            topics = list(self._topics.values())
        self._context.keeper.close()
        for topic in topics:
            topic.log.close()
        self._context.pool.close()
        try:
            self._record_ends()
        finally:
            release_ownership(self._locks)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_topic(self, name: TopicName) -> Topic:
        record = self._catalog.read(name)
        folder = self._catalog.folder(name)
        before = self._catalog.end_of(record.log_id)
        recovered = recover(self._context.disk, folder, record.log_id, record.first_offset, before)
        self._context.budget.give_back(recovered.removed_bytes)
        if recovered.torn is not None:
            _log.warning(
                "%s: cut a torn tail at byte %d of %s (%s); its bytes are kept in %s",
                name, recovered.torn.position, recovered.torn.path, recovered.torn.reason, recovered.torn.kept_as,
            )  # fmt: skip
        retention = record.retention or self.settings.wal.retention
        recovered.producers.raise_floor(record.floor)
        recovered.producers.raise_epochs(record.epochs)
        recorder = TopicRecorder(self._catalog, name)
        log = TopicLog(self._context, name, folder, record.log_id, record.schema, retention, recovered, recorder)
        log.history = self._history_of(log)
        topic = self._topics[name] = Topic(log)
        return topic

    def _record_ends(self) -> None:
        self._catalog.record_ends(
            {topic.log.log_id: (topic.name, topic.log.durable_end) for topic in self._topics.values()}
        )

    def _maintain_again(self) -> None:
        try:
            self.maintain()
        finally:
            self._context.keeper.call_in(MAINTAIN_INTERVAL_MS, self._maintain_again)

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the storage")

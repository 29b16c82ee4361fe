"""A data folder and its topics. One process owns it at a time."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from frazil.core.clock import Clock, SystemClock
from frazil.core.disk import Disk, LocalDisk
from frazil.core.disk.memory import MemoryDisk
from frazil.core.errors import (
    Closed,
    FrazilError,
    LogFailed,
    SchemaMismatch,
    TopicExists,
    TopicNotFound,
    TryLater,
)
from frazil.core.names import TopicName
from frazil.core.partitions import partition_names, partitions_of, partitions_to_make, topic_not_found
from frazil.core.process.own_process import OwnProcess
from frazil.core.rows import check_change, check_own_schema
from frazil.core.settings import MIB, AckLevel, RetentionSettings, Settings
from frazil.log.attachment import Attachment, NoAttachment
from frazil.log.context import LogContext, OpenFiles
from frazil.log.folder.admission import TopicAdmission
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.folder.catalog import TopicCatalog, TopicRecord
from frazil.log.folder.identity import mark_of
from frazil.log.folder.ownership import release_ownership, take_ownership
from frazil.log.folder.reading_disk import NotAtOnce, ReadingDisk
from frazil.log.maintenance import LogMaintenance
from frazil.log.metrics import LogMetrics
from frazil.log.opening import LogOpener
from frazil.log.read.cache import ReplayCache
from frazil.log.read.history import ColderOf, no_colder_tiers
from frazil.log.retention.enforcement import GuardedRetention, GuardProblem
from frazil.log.retention.guards import Guard, GuardsOf
from frazil.log.timer import Timer
from frazil.log.topic import Topic
from frazil.log.uninterrupted import in_main_thread, is_call_unfinished, uninterrupted
from frazil.log.write.acks import ack_of_new_topic
from frazil.log.write.commit_pool import CommitPool
from frazil.log.write.disk_budget import DiskBudget
from frazil.log.write.stored_groups import GroupsOf, no_groups

_AT_ONCE_BYTES_MAX = 1 * MIB
"""A larger last segment takes longer to read than a hand-over between threads, and is read once."""

_FORKED = "one process owns a folder; use frazil.connect in the others, started with multiprocessing's spawn"

_log = logging.getLogger("frazil.log")


def open_storage(
    where: str | os.PathLike[str] | Settings | None,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    colder_of: ColderOf = no_colder_tiers,
    guards_of: GuardsOf = list,
    groups_of: GroupsOf = no_groups,
) -> Storage:
    """Open a data folder, creating it if it does not exist; `None` keeps everything in memory.

    `colder_of` returns the tiers with rows that a log no longer has; `guards_of` returns the guards of retention, once
    the folder is owned. `groups_of` then returns the store of ack level `object`. `disk` and `clock` are for tests.
    """
    settings = where if isinstance(where, Settings) else Settings.of_folder(where)
    if disk is None:
        disk = MemoryDisk() if settings.data is None else LocalDisk()
    return Storage(settings, disk, clock or SystemClock(), colder_of, guards_of, groups_of)


class Storage:
    def __init__(
        self,
        settings: Settings,
        disk: Disk,
        clock: Clock,
        colder_of: ColderOf,
        guards_of: GuardsOf,
        groups_of: GroupsOf,
    ) -> None:
        self.settings = settings
        self._colder_of = colder_of
        self._locks = take_ownership(disk, settings)
        try:
            disk.make_folder(settings.log_folder)
            self.folder_mark = None if settings.data is None else mark_of(settings.log_folder)
            self._catalog = TopicCatalog(disk, settings.log_folder)
            budget = DiskBudget(settings.wal.disk_bytes_max)
            budget.found(self._catalog.size_bytes)
            self._retention = GuardedRetention(clock, guards_of())
        except BaseException:
            release_ownership(self._locks)
            raise
        self._context = LogContext(
            settings.wal,
            disk,
            clock,
            budget,
            ReplayCache(settings.wal.cache_bytes, settings.wal.cache_capacity),
            CommitPool(settings.wal.committers),
            Timer(clock),
            OpenFiles(settings.wal.open_files_max),
            LogMetrics(),
            OwnProcess(f"the storage in {settings.data or 'memory'}", _FORKED),
        )
        self._opener = LogOpener(settings, self._context, self._catalog, groups_of())
        self._guard = threading.RLock()
        self._topics: dict[TopicName, Topic] = {}
        self._changes = 0
        """Incremented by every change that may affect the files of a topic that is not open."""
        self._closed = False
        self.attachment: Attachment = NoAttachment()
        self._maintenance = LogMaintenance(self._context, self._retention, self.opened_topics, self._maintain_folder)
        self.admission = TopicAdmission(disk, settings.log_folder, self._catalog, budget, self._guard, self._let_go)
        """Which topics of the folder are topics of this storage: in a cluster, another broker may own some."""
        try:
            self._maintenance.start()
        except BaseException:  # no thread can be started: then the folder is not held either
            release_ownership(self._locks)
            raise

    # --- topics

    def topic(self, name: str, *, schema: pa.Schema | None = None, create: bool = True) -> Topic:
        """Return the topic, creating it if it does not exist. With `schema` it is a typed topic of these columns."""
        parsed = TopicName.parse(name)
        self._context.process.check()
        topic = self._found(parsed)
        if topic is None:
            topic = uninterrupted(lambda: self._taken_over(parsed, schema, create=create))
        if schema is not None and (topic.schema is None or not topic.schema.equals(schema)):
            raise SchemaMismatch(
                f"{parsed} exists with another schema; change it with change_schema", topic=str(parsed)
            )
        return topic

    def create_topic(
        self,
        name: str,
        *,
        schema: pa.Schema | None = None,
        retention: RetentionSettings | None = None,
        log_id: str | None = None,
        ack: str | None = None,
    ) -> Topic:
        """Create a topic, or raise `TopicExists`. `ack` is its ack level, by default that of the settings.

        `log_id` is for callers that must know it beforehand; it must be unused.
        """
        parsed = TopicName.parse(name)
        if schema is not None:
            check_own_schema(schema)
            schema = schema.remove_metadata()
        level = ack_of_new_topic(self.settings, ack)
        self._context.process.check()
        record = TopicRecord.new(parsed, self._context.clock.now_us(), schema, retention, log_id, level)
        return uninterrupted(lambda: self._make_topic(parsed, lambda: self._catalog.create(record)))

    def adopt_topic(self, name: str, log: AdoptedLog) -> Topic:
        """Create a topic whose log goes on behind rows stored elsewhere: all of it or nothing survives a crash."""
        parsed, context = TopicName.parse(name), self._context
        context.process.check()
        self._opener.take_over_adopted(parsed, log)
        adopt = partial(self._catalog.adopt, parsed, log, context.settings, context.budget)
        return uninterrupted(lambda: self._make_topic(parsed, adopt))

    def _make_topic(self, parsed: TopicName, make: Callable[[], None]) -> Topic:
        with self._guard:
            self._check_open()
            self._catalog.check_new(parsed)
            self._changes += 1
            make()
            return self._open_topic(parsed)

    def _found(self, name: TopicName) -> Topic | None:
        """Return a topic that is open, or that the main thread can open without changing any file; else None.

        Handing such an opening over to another thread took half as long as the opening itself.
        """
        if is_call_unfinished():
            return None
        with self._guard:
            self._check_open()
            found, changes = self._topics.get(name), self._changes
            if found is not None or name not in self._catalog or not in_main_thread():
                return found
        try:  # without the guard: a signal handler may close the storage, which another thread does
            made = self._made_topic(name, ReadingDisk(self._context.disk, _AT_ONCE_BYTES_MAX))
        except TryLater:
            raise
        except (NotAtOnce, FrazilError, OSError):
            return None  # the problem occurs again, and is reported, where it can be handled
        with self._guard:
            if self._closed or self._changes != changes:
                return None
            return self._added(made)

    def _taken_over(self, parsed: TopicName, schema: pa.Schema | None, *, create: bool) -> Topic:
        """Requests to the object store are sent without the lock: other topics do not wait for them."""
        if not self._closed and parsed not in self._topics and parsed in self._catalog:
            self._opener.take_over(parsed)
        return self._opened(parsed, schema, create=create)

    def _opened(self, parsed: TopicName, schema: pa.Schema | None, *, create: bool) -> Topic:
        with self._guard:
            self._check_open()
            topic = self._topics.get(parsed)
            if topic is None and parsed in self._catalog:
                return self._open_topic(parsed)
            if topic is None and create:
                return self.create_topic(str(parsed), schema=schema)
            if topic is None:
                raise self._not_there(parsed)
            return topic

    def create_partitions(
        self,
        name: str,
        count: int,
        *,
        retention: RetentionSettings | None = None,
        log_ids: Mapping[TopicName, str] | None = None,
        ack: str | None = None,
    ) -> list[Topic]:
        """Create `<name>-part-0` up to `<name>-part-(count-1)`: all or none. Raises `TopicExists` if the topic exists.

        A crash in between leaves a topic without partition 0: the same call completes it.
        """
        base = TopicName.parse(name)
        wanted = partition_names(base, count)
        level = ack_of_new_topic(self.settings, ack)
        self._context.process.check()
        return uninterrupted(lambda: self._create_partitions(base, wanted, retention, log_ids or {}, level))

    def _create_partitions(
        self,
        base: TopicName,
        wanted: list[TopicName],
        retention: RetentionSettings | None,
        log_ids: Mapping[TopicName, str],
        level: AckLevel,
    ) -> list[Topic]:
        with self._guard:
            self._check_open()
            missing = partitions_to_make(base, len(wanted), self._catalog.family(base))
            for partition in wanted:
                if partition not in missing:
                    self._check_unused(partition, retention, level)
            try:
                for partition in missing:
                    self.create_topic(str(partition), retention=retention, log_id=log_ids.get(partition), ack=level)
            except BaseException:
                for partition in missing:
                    if partition in self._catalog:
                        self.delete_topic(str(partition))
                raise
            return [self.topic(str(partition), create=False) for partition in wanted]

    def _check_unused(self, partition: TopicName, retention: RetentionSettings | None, level: AckLevel) -> None:
        """Check that an existing partition is one that an interrupted creation left; otherwise it is in use."""
        topic = self.topic(str(partition), create=False)
        record = self._catalog.read(partition)
        if topic.schema is not None or topic.stats().end or (record.retention, record.ack) != (retention, level):
            raise TopicExists(str(partition))

    def change_schema(self, name: str, schema: pa.Schema) -> Topic:
        """Give a typed topic new nullable columns or wider types; older rows are read in the new form."""
        check_own_schema(schema)
        self._context.process.check()
        return uninterrupted(lambda: self._change_schema(name, schema.remove_metadata()))

    def _change_schema(self, name: str, schema: pa.Schema) -> Topic:
        with self._guard:
            topic = self.topic(name, create=False)
            if topic.schema is None:
                raise SchemaMismatch(f"{name} is a message topic: its columns are fixed")
            check_change(topic.schema, schema)
            self._catalog.update(topic.log.name, lambda record: record.with_schema(schema))
            topic.log.change_schema(schema)
            return topic

    def set_retention(self, name: str, retention: RetentionSettings | None) -> None:
        """Set the topic's own retention; None restores that of the settings."""
        self._context.process.check()
        uninterrupted(lambda: self._set_retention(name, retention))

    def _set_retention(self, name: str, retention: RetentionSettings | None) -> None:
        with self._guard:
            topic = self.topic(name, create=False)
            self._catalog.update(  # even on a full disk: a shorter retention frees space
                topic.log.name, lambda record: record.with_retention(retention), makes_room=True
            )
            topic.log.retention = retention or self.settings.wal.retention

    def delete_topic(self, name: str) -> None:
        """Delete a topic and all its rows. A topic recreated under the name is unrelated to it.

        For a partitioned topic, all partitions are deleted, number 0 last.
        """
        parsed = TopicName.parse(name)
        self._context.process.check()
        uninterrupted(lambda: self._delete_topic(parsed))

    def _delete_topic(self, parsed: TopicName) -> None:
        with self._guard:
            self._check_open()
            if parsed not in self._catalog:
                if not self._catalog.has_partitions(parsed):
                    raise TopicNotFound(str(parsed))
                for partition in reversed(partitions_of(parsed, self._catalog.family(parsed))):
                    self.delete_topic(str(partition))
                return
            deleted = self.attachment.deleting(parsed, lambda: self._catalog.read(parsed).log_id)
            with contextlib.suppress(LogFailed, TryLater):  # rows that are not durable are deleted too
                self._let_go(parsed)
            self._context.budget.give_back(self._catalog.delete(parsed))
            deleted()

    def _let_go(self, name: TopicName) -> None:
        """Close a topic, if it is open; raises `LogFailed` if acknowledged rows are not durable. It is closed then."""
        self._check_open()
        self._changes += 1
        topic = self._topics.pop(name, None)
        if topic is None:
            return
        try:
            topic.log.close()
        finally:
            self._retention.forget(topic.log)
            self._context.cache.forget(topic.log.cache)

    def check_new(self, name: TopicName) -> None:
        """Check the name of a new topic as `create_topic` does, without changes."""
        self._context.process.check()
        with self._guard:
            self._check_open()
            self._catalog.check_new(name)

    def record(self, name: str) -> TopicRecord:
        """Return what the topic was created with, and what was set for it since."""
        parsed = TopicName.parse(name)
        self._context.process.check()
        with self._guard:
            self._check_open()
            if parsed not in self._catalog:
                raise self._not_there(parsed)
            return self._catalog.read(parsed)

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        self._context.process.check()
        with self._guard:
            self._check_open()
            return [str(name) for name in sorted(self._catalog.names())]

    def names(self) -> set[TopicName]:
        """Return the names of all topics, unordered."""
        self._context.process.check()
        with self._guard:
            self._check_open()
            return self._catalog.names()

    def family(self, name: TopicName) -> set[TopicName]:
        """Return the topic or base topic of `name`, and its partitions, as far as they exist.

        It reads no other topic, however many there are.
        """
        self._context.process.check()
        with self._guard:
            self._check_open()
            return self._catalog.family(name)

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

    def add_guard(self, guard: Guard) -> None:
        """Add a guard that must agree before retention removes rows."""
        self._retention.add(guard)

    def remove_guard(self, guard: Guard) -> None:
        self._retention.remove(guard)

    def guards(self) -> tuple[Guard, ...]:
        """Return all guards as of now: who removes rows of any tier asks them."""
        return self._retention.guards

    def kept_by_guards(self) -> list[GuardProblem]:
        """Return topics whose expired rows are kept because a guard cannot answer, with the reason."""
        return self._retention.problems()

    def opened_topics(self) -> list[Topic]:
        self._context.process.check()
        with self._guard:
            return list(self._topics.values())

    def maintain(self) -> None:
        """Rotate by age, remove rows past their retention, and record the end of each log.

        Waits for the guards of what is removed, with a limit.
        """
        self._maintenance.run_now()

    def close(self) -> None:
        """Finish queued work, make it durable, and release the folder.

        All topics are closed and the folder is released, whatever fails; then the first error is raised. In a forked
        child it does nothing.
        """
        if not self._context.process.is_here:
            return  # the parent still owns it
        uninterrupted(self._close)

    def _close(self) -> None:
        with self._guard:
            if self._closed:
                return
            self._closed = True
            topics = list(self._topics.values())
        errors: list[Exception] = []
        try:
            self._context.keeper.close()
            self._retention.close()
            parts = [self._opener.close, self.attachment.close, self._context.pool.close, self._record_ends]
            for close in [*(topic.log.close for topic in topics), *parts]:
                try:
                    close()
                except (FrazilError, OSError) as error:
                    errors.append(error)
        finally:
            release_ownership(self._locks)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"and also: {other}")
            raise errors[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _open_topic(self, name: TopicName) -> Topic:
        self._changes += 1
        return self._added(self._made_topic(name, self._context.disk))

    def _added(self, topic: Topic) -> Topic:
        self._changes += 1
        self._topics[topic.log.name] = topic
        return topic

    def _made_topic(self, name: TopicName, disk: Disk) -> Topic:
        log = self._opener.open(name, disk)
        log.colder = self._colder_of(log)
        return Topic(log)

    def _not_there(self, name: TopicName) -> TopicNotFound:
        return topic_not_found(name, self._catalog.family(name))

    def _record_ends(self) -> None:
        filled = [topic for topic in self._topics.values() if topic.log.durable_end]  # most of many topics are empty
        self._catalog.record_ends({topic.log.log_id: (topic.name, topic.log.durable_end) for topic in filled})

    def _maintain_folder(self) -> None:
        with self._guard:
            if not self._closed:
                self._catalog.maintain()
                self._record_ends()

    def _check_open(self) -> None:
        if self._closed:
            raise Closed("the storage")

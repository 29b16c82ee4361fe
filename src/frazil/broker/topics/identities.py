"""The topic records of the metadata store, maintained by the owner of the data folder.

A record is written by put-if-absent before the logs of a topic are created: this decides who creates the topic. It is
deleted before the logs. The folder has its own copy for each log, and that copy is authoritative: settings change
there first. Topics that were created, changed or deleted without this store are synchronized when the owner starts.

A record without any log in the folder remains after an interrupted creation, or after a deletion without this store. It
is removed if nothing uses the topic. If the topic has subscriptions or producers, the record stays and is reported, and
the next creation under the name replaces it.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

import pyarrow as pa

from frazil.broker.store.records import TOPICS, topic_key, users_of
from frazil.broker.topics.making import create_logs, new_log_id, to_make
from frazil.core.clock import Clock
from frazil.core.errors import CorruptLog, FrazilError, MetadataUnavailable, TopicExists, TopicNotFound, TryLater
from frazil.core.names import TopicName
from frazil.core.rows import check_own_schema
from frazil.core.settings import AckLevel, RetentionSettings
from frazil.core.topic_names import twins
from frazil.log.folder.catalog import TopicRecord
from frazil.log.storage import Storage
from frazil.log.write.acks import ack_of_new_topic
from frazil.meta.broker_keys import OWNER
from frazil.meta.store import ABSENT, KeyAt, MetaStore, StoredEntry
from frazil.meta.topic_records import (
    FIRST_EPOCH,
    TOPIC_RECORDS,
    LogIdentity,
    TopicIdentity,
    UnreadableRecord,
    creator_key,
    packed_schema,
    topic_record_key,
)
from frazil.registry.records import topic_key as schema_key

TRIES_MAX = 20
HOLD_SECONDS_MAX = 60.0
CARRIED_AT_ONCE = 1_000
"""Number of records stored by one call."""
AGAIN_SECONDS = 5.0
PARTITION_MARK = "-part-"

_log = logging.getLogger("frazil.broker")


class TopicMoved(TryLater):
    """Another broker owns the topic by now, or has owned it since."""

    def __init__(self, name: TopicName) -> None:
        super().__init__(f"{name} belongs to another broker by now; try again")


@dataclass(frozen=True, slots=True)
class OwnedLog:
    """A log as this broker owns it: with another epoch, somebody else has had it meanwhile."""

    log_id: str | None
    epoch: int


@dataclass(frozen=True, slots=True)
class _Known:
    """The contents of the store: records by key, and the non-reliable topics of each base topic."""

    entries: Mapping[str, StoredEntry]
    unstored: Mapping[TopicName, Collection[TopicName]]


class TopicIdentities:
    """Thread-safe. Calls wait for the store, and for other calls about the same topic."""

    def __init__(self, storage: Storage, meta: MetaStore, clock: Clock) -> None:
        self._storage = storage
        self._meta = meta
        self._clock = clock
        self._free = threading.Condition()
        self._held: set[str] = set()
        self._due: set[TopicName] = set()
        """Topics whose records could not be updated after a change."""
        self._stop = threading.Event()

    # --- locks of single topics

    def hold(self, base: TopicName) -> None:
        """Lock a topic until `release`, which any thread may call: no other call creates or deletes it."""
        key = topic_record_key(base)
        with self._free:
            if not self._free.wait_for(lambda: key not in self._held, HOLD_SECONDS_MAX):
                raise TryLater(f"{base} is being created or deleted by another call; try again")
            self._held.add(key)

    def _hold_if_free(self, base: TopicName) -> bool:
        with self._free:
            key = topic_record_key(base)
            if key in self._held:
                return False
            self._held.add(key)
            return True

    def release(self, base: TopicName) -> None:
        with self._free:
            self._held.discard(topic_record_key(base))
            self._free.notify_all()

    @contextlib.contextmanager
    def holding(self, base: TopicName) -> Iterator[None]:
        self.hold(base)
        try:
            yield
        finally:
            self.release(base)

    # --- which topics there are

    def family(self, name: TopicName) -> set[TopicName]:
        """Return the topic (without partition number) and its partitions that have logs."""
        return self._storage.family(name)

    def is_last(self, name: TopicName, known: Collection[TopicName]) -> bool:
        """Whether no other partition is left of the topic; `known` are those without a log."""
        return self._storage.family(name) | set(known) <= {name}

    # --- create

    def make(
        self,
        base: TopicName,
        partitions: int,
        schema: pa.Schema | None = None,
        retention: RetentionSettings | None = None,
        ack: str | None = None,
    ) -> None:
        """Create a topic, or all its partitions, with their logs: all or none. Raises `TopicExists`."""
        if schema is not None:
            check_own_schema(schema)
            schema = schema.remove_metadata()
        with self.holding(base):
            unstored = dict.fromkeys(self._unstored(base.partition_of()[0]), False)
            missing = to_make(base, partitions, True, unstored, self.family(base))
            ids = {name: new_log_id() for name in missing}
            self.reserve(base, ids, schema, retention, ack=ack)
            try:
                create_logs(self._storage, base, partitions, retention, ids, schema, ack)
            except BaseException:
                self.undo(base, ids)
                raise

    def reserve(
        self,
        name: TopicName,
        ids: Mapping[TopicName, str | None],
        schema: pa.Schema | None = None,
        retention: RetentionSettings | None = None,
        also: Mapping[str, bytes] | None = None,
        ack: str | None = None,
    ) -> None:
        """Store the record of logs before they are created, and `also` with it; raises `TopicExists` if they exist.

        The caller holds the topic's lock. If the logs are not created after all, call `follow` to undo it.
        """
        base, now_us = name.partition_of()[0], self._clock.now_us()
        kept = None if retention is None else retention.model_dump()
        level = recorded_ack(ack_of_new_topic(self._storage.settings, ack))
        new = {
            one: LogIdentity(log_id, now_us, packed_schema(schema), kept, ack=level if log_id is not None else None)
            for one, log_id in ids.items()
        }
        for _ in range(TRIES_MAX):
            entry = self._meta.get(topic_record_key(base))
            self._check_free(base, entry)
            for one, log_id in ids.items():
                if log_id is not None:
                    self._storage.check_new(one)
            present = self._present(base, entry, self._unstored(base))
            if there := sorted(present.keys() & new.keys()):
                raise TopicExists(str(there[0]))
            self._check_forms(new, present)
            if entry is not None and not present:  # of a topic that is gone: its schema goes with it
                self._meta.delete_all([schema_key(TopicIdentity.decode(entry.value).topic)])
            if self._put(base, {**present, **{one: self._new(log) for one, log in new.items()}}, entry, also):
                return
        raise contended(base)

    def undo(self, name: TopicName, ids: Mapping[TopicName, str | None]) -> None:  # noqa: ARG002 - the folder tells
        """Correct the record after the creation of these logs has failed. The caller holds the topic."""
        self.follow(name)

    def _new(self, log: LogIdentity) -> LogIdentity:
        """Complete the record of a new log."""
        return log

    def _check_forms(self, new: Collection[TopicName], present: Collection[TopicName]) -> None:
        """Raise `PartitioningDiffers` if new topics and present ones are not of one form. The folder has checked it."""

    def _check_free(self, base: TopicName, entry: StoredEntry | None) -> None:
        """Raise `TopicExists` for the record of another owner, `InvalidName` for that of another existing topic."""
        if entry is None or self._is_ours(base, entry):
            return
        known = TopicIdentity.decode(entry.value)
        raise TopicExists(str(known.topic)) if known.topic == base else twins(base, known.topic)

    def keys_of(self, name: TopicName) -> list[str]:
        """Return the keys of a topic's record and its creator's; none if the record cannot be read, or is of a topic
        that differs in case."""
        base = name.partition_of()[0]
        entry = self._meta.get(topic_record_key(base))
        try:
            if entry is None:
                return [creator_key(base)]
            return [] if TopicIdentity.decode(entry.value).topic != base else [creator_key(base), entry.key]
        except UnreadableRecord as error:
            _log.error("the record of %s is left as it is: %s", base, error)
            return []

    def has_log(self, name: TopicName, log_id: str | None) -> bool:
        """Whether the topic's record names this log."""
        entry = self._meta.get(topic_record_key(name))
        known = {} if entry is None else TopicIdentity.decode(entry.value).logs
        return name in known and known[name].log_id == log_id

    def is_elsewhere(self, name: TopicName) -> bool:  # noqa: ARG002 - one server has all
        """Whether another broker owns the topic, by its record as it is now."""
        return False

    def owned(self, name: TopicName) -> OwnedLog | None:  # noqa: ARG002 - one server has all
        """Return what must stay the same while the topic is deleted; raises `TopicMoved`. None: nobody else has it."""
        return None

    def unchanged(self, name: TopicName, owned: OwnedLog | None) -> KeyAt | None:  # noqa: ARG002
        """Return on which condition the topic is still this broker's to change, or has no owner; raises `TopicMoved`.

        `owned`: it must be as it was then.
        """
        return None

    def removed(self, name: TopicName, owned: OwnedLog | None = None) -> None:
        """Take a topic out of the record, once all that is stored of it is deleted. Here `follow` does it."""

    # --- following the folder

    def changed(self, name: TopicName) -> None:
        """Update the record of a topic from the folder; if the store is unavailable, retry with the next such call."""
        try:
            with self.holding(name):
                self.follow(name)
        except TryLater as error:
            self._due.add(name.partition_of()[0])
            _log.warning("the record of %s in the metadata store is old, and is stored later: %s", name, error)

    def follow(self, name: TopicName) -> None:
        """The same, for the holder of the topic."""
        own = name.partition_of()[0]
        self._due.add(own)
        for one in [own, *(other for other in list(self._due) if other != own)]:
            if one != own and not self._hold_if_free(one):
                continue  # it is being made or deleted right now
            try:
                self._follow(one)
            except FrazilError as error:
                _log.warning("the record of %s in the metadata store is old, and is stored later: %s", one, error)
                if isinstance(error, MetadataUnavailable):
                    return  # the others would wait as long, each
            else:
                self._due.discard(one)
            finally:
                if one != own:
                    self.release(one)

    def carry_over(self) -> None:
        """Synchronize all records with the folder; retries until the store answers or `close` is called."""
        while not self._stop.is_set():
            try:
                self.carry_over_now()
            except FrazilError as error:
                _log.warning("the topics are not copied to the metadata store yet; this is retried: %s", error)
                self._stop.wait(AGAIN_SECONDS)
            else:
                return

    def close(self) -> None:
        self._stop.set()

    def carry_over_now(self) -> None:
        """Like `carry_over`, with one attempt; raises `MetadataUnavailable`."""
        known = self._known()
        names = sorted({*self._storage.names(), *(name for some in known.unstored.values() for name in some)})
        # Of names that differ only in case, the first is used.
        bases = {topic_record_key(name): name.partition_of()[0] for name in reversed(names)}
        old = (base for base in bases.values() if self._differs(base, known))
        carried = 0
        while (batch := list(itertools.islice(old, CARRIED_AT_ONCE))) and not self._stop.is_set():
            carried += self._store(batch)
        for key in known.entries.keys() - bases.keys():
            try:
                base = TopicIdentity.decode(known.entries[key].value).topic
                with self.holding(base):
                    self._follow(base)
            except UnreadableRecord as error:
                _log.error("%s is left as it is: %s", key, error)
        if carried:
            _log.info("%d topics of the folder were copied to the metadata store", carried)

    def _known(self) -> _Known:
        unstored: dict[TopicName, set[TopicName]] = {}
        for name in _without_log(self._meta.list(TOPICS)):
            unstored.setdefault(name.partition_of()[0], set()).add(name)
        return _Known({entry.key: entry for entry in self._meta.list(TOPIC_RECORDS)}, unstored)

    def _differs(self, base: TopicName, known: _Known) -> bool:
        entry = known.entries.get(topic_record_key(base))
        try:
            logs = self._present(base, entry, known.unstored.get(base, ()))
            if entry is None:
                return bool(logs)
            return TopicIdentity.decode(entry.value).logs != logs and self._is_ours(base, entry)
        except UnreadableRecord as error:  # it stops itself alone
            _log.error("the record of %s is left as it is: %s", base, error)
            return False

    def _store(self, bases: Collection[TopicName]) -> int:
        """Store current records in one transaction; returns their number."""
        with contextlib.ExitStack() as stack:
            for base in bases:
                stack.enter_context(self.holding(base))
            known = self._known()
            values = {}
            for base in bases:
                if self._differs(base, known):
                    entry = known.entries.get(topic_record_key(base))
                    logs = self._present(base, entry, known.unstored.get(base, ()))
                    values[topic_record_key(base)] = self._record(base, logs, entry).encode()
            self._meta.put_all(values)
            return len(values)

    def _follow(self, base: TopicName) -> None:
        for _ in range(TRIES_MAX):
            entry = self._meta.get(topic_record_key(base))
            if entry is not None and not self._is_ours(base, entry):
                return
            logs = self._present(base, entry, self._unstored(base))
            if logs and self._put(base, logs, entry):
                return
            if not logs and (entry is None or self._is_waited_for(entry) or self._withdrawn(entry)):
                return
        raise contended(base)

    def _withdrawn(self, entry: StoredEntry) -> bool:
        """With the topic's schema, first: what is left by an interruption is found again by the record."""
        self._meta.delete_all([schema_key(TopicIdentity.decode(entry.value).topic)])
        return self._meta.delete(entry.key, entry.revision)

    def _put(
        self,
        base: TopicName,
        logs: Mapping[TopicName, LogIdentity],
        entry: StoredEntry | None,
        also: Mapping[str, bytes] | None = None,
    ) -> bool:
        """Return whether the record was stored: not if it was changed since it was read."""
        value = self._record(base, logs, entry).encode()
        if entry is not None and entry.value == value and not also:
            return True
        revision = ABSENT if entry is None else entry.revision
        return self._meta.put_if(topic_record_key(base), value, revision, also=also) is not None

    def _record(
        self, base: TopicName, logs: Mapping[TopicName, LogIdentity], entry: StoredEntry | None
    ) -> TopicIdentity:
        epoch = FIRST_EPOCH if entry is None else TopicIdentity.decode(entry.value).epoch
        return TopicIdentity(base, logs, self._owner, epoch)

    def _is_waited_for(self, entry: StoredEntry) -> bool:
        """Whether a topic without logs is in use."""
        known = TopicIdentity.decode(entry.value)
        if all(users_of(self._meta, name) == (0, 0) for name in known.logs):
            return False
        _log.error("%s has subscriptions or producers, but no log in the folder", known.topic)
        return True

    # --- existing topics

    def _present(
        self, base: TopicName, entry: StoredEntry | None, unstored: Collection[TopicName]
    ) -> dict[TopicName, LogIdentity]:
        """Return the logs of a topic in the folder, and the non-reliable topics among it and its partitions."""
        known = {} if entry is None else TopicIdentity.decode(entry.value).logs
        found = {name: known.get(name, LogIdentity(None, 0)) for name in unstored}
        for name in self._storage.family(base):
            try:
                found[name] = identity_of(self._storage.record(str(name)), known.get(name))
            except TopicNotFound:
                continue  # deleted since
            except (CorruptLog, OSError) as error:  # it exists, even if unreadable: its record is kept
                _log.warning("%s: its record in the folder can't be read: %s", name, error)
                if name in known:
                    found[name] = known[name]
        return found

    def _unstored(self, base: TopicName) -> set[TopicName]:
        """Return the topic itself or its partitions, if the broker knows them as non-reliable."""
        own = self._meta.get(topic_key(TOPICS, base))
        parts = self._meta.list(topic_key(TOPICS, base) + PARTITION_MARK)
        return {name for name in _without_log([*parts, *([own] if own else [])]) if name.partition_of()[0] == base}

    def _is_ours(self, base: TopicName, entry: StoredEntry) -> bool:
        """Whether the record belongs to this folder, and not to another topic whose name differs only in case."""
        known = TopicIdentity.decode(entry.value)
        if known.owner not in (None, self._owner):
            return False
        return known.topic == base or not self._present(known.topic, entry, self._unstored(known.topic))

    @functools.cached_property
    def _owner(self) -> str | None:
        """Return the folder's id, which was stored before the broker started and never changes."""
        found = self._meta.get(OWNER)
        return None if found is None else str(json.loads(found.value)["folder"])


def _without_log(entries: Iterable[StoredEntry]) -> Iterator[TopicName]:
    """Yield the non-reliable topics among the broker's records."""
    for entry in entries:
        if not json.loads(entry.value)["reliable"]:
            yield TopicName(*entry.key.removeprefix(TOPICS).split("/"))


def contended(base: TopicName) -> TryLater:
    return TryLater(f"the record of {base} was changed by others {TRIES_MAX} times meanwhile; try again")


def identity_of(record: TopicRecord, known: LogIdentity | None = None) -> LogIdentity:
    """Return the folder's data on a log. The creation time is that of the known record, if there is one."""
    retention = None if record.retention is None else record.retention.model_dump()
    created_us = known.created_us if known is not None and known.log_id == record.log_id else record.created_us
    ack = recorded_ack(record.ack)
    return LogIdentity(record.log_id, created_us, packed_schema(record.schema), retention, ack=ack)


def recorded_ack(level: AckLevel) -> str | None:
    """Return the level as it is recorded: not at all if it is `disk`."""
    return None if level is AckLevel.DISK else level.value

"""The topic records of a metadata store that the brokers of a cluster share.

Each log has its own owner and epoch. Which topics there are is decided by the records alone: a folder says what was set
for its own logs, and never removes a log from a record. A broker creates, changes and deletes only logs that it owns,
each by compare-and-set; all others in a record stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import replace

from frazil.broker.store.cluster import Cluster
from frazil.broker.topics.identities import (
    TRIES_MAX,
    OwnedLog,
    TopicIdentities,
    TopicMoved,
    contended,
    identity_of,
)
from frazil.core.clock import Clock
from frazil.core.errors import CorruptLog, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.partitions import check_form
from frazil.log.storage import Storage
from frazil.meta.broker_keys import TAKEN_NAMES
from frazil.meta.store import ABSENT, KeyAt, MetaStore, StoredEntry
from frazil.meta.topic_records import (
    FIRST_EPOCH,
    LogIdentity,
    TopicIdentity,
    UnreadableRecord,
    creator_key,
    topic_record_key,
)

_log = logging.getLogger("frazil.broker")


class SharedIdentities(TopicIdentities):
    """See `TopicIdentities`."""

    def __init__(self, storage: Storage, meta: MetaStore, clock: Clock, cluster: Cluster) -> None:
        super().__init__(storage, meta, clock)
        self._cluster = cluster

    def family(self, name: TopicName) -> set[TopicName]:
        return self._storage.family(name) | set(self._cluster.family(name))

    def is_last(self, name: TopicName, known: Collection[TopicName]) -> bool:  # noqa: ARG002 - the record has all
        return self._logs_of(self._meta.get(topic_record_key(name))).keys() <= {name}

    def keys_of(self, name: TopicName) -> list[str]:
        """Without the record itself: `removed` deletes it, unless a partition was added meanwhile."""
        entry = self._meta.get(topic_record_key(name))
        is_other = entry is not None and TopicIdentity.decode(entry.value).topic != name.partition_of()[0]
        return [] if is_other else [creator_key(name)]

    def undo(self, name: TopicName, ids: Mapping[TopicName, str | None]) -> None:
        """Take those logs out of the record that were not created."""
        made = self._storage.family(name)
        self._take_out({one: log_id for one, log_id in ids.items() if one not in made})

    def is_elsewhere(self, name: TopicName) -> bool:
        found = self._logs_of(self._meta.get(topic_record_key(name))).get(name)
        return found is not None and found.owner != self._cluster.broker_id

    def owned(self, name: TopicName) -> OwnedLog | None:
        entry = self._meta.get(topic_record_key(name))
        found = self._owned_in(entry, name)
        if found is None and name in self._logs_of(entry):
            raise TopicMoved(name)
        return found

    def unchanged(self, name: TopicName, owned: OwnedLog | None) -> KeyAt | None:
        entry = self._meta.get(topic_record_key(name))
        found = self._owned_in(entry, name)
        if found != owned if owned is not None else found is None and name in self._logs_of(entry):
            raise TopicMoved(name)
        return KeyAt(topic_record_key(name), ABSENT if entry is None else entry.revision)

    def removed(self, name: TopicName, owned: OwnedLog | None = None) -> None:
        """Its deletion is noted before, so that the next start finishes it after a crash."""
        found = self._owned_in(self._meta.get(topic_record_key(name)), name)
        if owned is not None and found != owned:
            raise TopicMoved(name)
        if found is None:
            return
        if (log_id := found.log_id) is not None:
            self._storage.attachment.deleting(name, lambda: log_id)
        self._take_out({name: log_id}, found)

    def _owned_in(self, entry: StoredEntry | None, name: TopicName) -> OwnedLog | None:
        """Return a log of a record, if this broker owns it."""
        if name not in self._logs_of(entry):
            return None
        assert entry is not None
        known = TopicIdentity.decode(entry.value)
        if known.owner_of(name) != self._cluster.broker_id:
            return None
        return OwnedLog(known.logs[name].log_id, known.epoch_of(name))

    def carry_over(self) -> None:
        """Do nothing: a folder does not decide which topics there are."""

    def carry_over_now(self) -> None:
        """Store what the folder has of this broker's logs, for a store that was restored from an older backup."""
        for base in {name.partition_of()[0] for name in self._storage.names()}:
            with self.holding(base):
                self._put_back(base)
            self.changed(base)

    def _put_back(self, base: TopicName) -> None:
        """Add the open logs of this broker to their record that were created after the backup."""
        for _ in range(TRIES_MAX):
            entry = self._meta.get(topic_record_key(base))
            if entry is not None and not self._is_ours(base, entry):
                return
            known = self._logs_of(entry)
            lost = {name: log for name in self._storage.family(base) - known.keys() if (log := self._own_log(name))}
            if not lost:
                return
            if self._put(base, {**known, **lost}, entry):
                _log.warning("the metadata store has lost %s: put back", ", ".join(map(str, sorted(lost))))
                return
        raise contended(base)

    def _own_log(self, name: TopicName) -> LogIdentity | None:
        """Return what the folder has of a log that this broker has opened as its owner."""
        try:
            record = self._storage.record(str(name))
        except (TopicNotFound, CorruptLog, OSError):
            return None
        if not record.owner_epoch:
            return None
        return replace(identity_of(record), owner=self._cluster.broker_id, epoch=record.owner_epoch)

    def _new(self, log: LogIdentity) -> LogIdentity:
        return replace(log, owner=self._cluster.broker_id, epoch=FIRST_EPOCH)

    def _check_forms(self, new: Collection[TopicName], present: Collection[TopicName]) -> None:
        for one in new:
            base = one.partition_of()[0]
            check_form(one, present, has_partitions=one == base and any(other != base for other in present))

    def _present(
        self,
        base: TopicName,
        entry: StoredEntry | None,
        unstored: Collection[TopicName],  # noqa: ARG002
    ) -> dict[TopicName, LogIdentity]:
        """Return the logs of the record, those of this broker with what the folder has of them."""
        found = self._logs_of(entry)
        for name in self._storage.family(base):
            known = found.get(name)
            if known is None or known.owner != self._cluster.broker_id:
                continue
            try:
                record = self._storage.record(str(name))
            except (TopicNotFound, CorruptLog, OSError):
                continue
            if record.log_id == known.log_id:
                found[name] = replace(identity_of(record, known), owner=known.owner, epoch=known.epoch)
        return found

    def _follow(self, base: TopicName) -> None:
        for _ in range(TRIES_MAX):
            entry = self._meta.get(topic_record_key(base))
            if (
                entry is None
                or not self._is_ours(base, entry)
                or self._put(base, self._present(base, entry, ()), entry)
            ):
                return
        raise contended(base)

    def _is_ours(self, base: TopicName, entry: StoredEntry) -> bool:
        return TopicIdentity.decode(entry.value).topic == base

    def _record(
        self, base: TopicName, logs: Mapping[TopicName, LogIdentity], entry: StoredEntry | None
    ) -> TopicIdentity:
        known = None if entry is None else TopicIdentity.decode(entry.value)
        return TopicIdentity(base, logs) if known is None else replace(known, logs=logs)

    def _take_out(self, gone: Mapping[TopicName, str | None], owned: OwnedLog | None = None) -> None:
        """Remove logs of these ids from their record, which is deleted with its last log.

        `owned`: raises `TopicMoved` unless each is still as this broker has owned it.
        """
        if not gone:
            return
        base = next(iter(gone)).partition_of()[0]
        for _ in range(TRIES_MAX):
            entry = self._meta.get(topic_record_key(base))
            if entry is None or not self._is_ours(base, entry):
                return
            known = TopicIdentity.decode(entry.value)
            if moved := [one for one in gone if owned is not None and self._owned_in(entry, one) != owned]:
                raise TopicMoved(moved[0])
            left = {name: log for name, log in known.logs.items() if name not in gone or log.log_id != gone[name]}
            if len(left) == len(known.logs):
                return
            if self._replaced(entry, replace(known, logs=left)):
                self._meta.delete_all([TAKEN_NAMES + log_id for log_id in gone.values() if log_id is not None])
                return
        raise contended(base)

    def _replaced(self, entry: StoredEntry, identity: TopicIdentity) -> bool:
        if not identity.logs:
            return self._meta.delete(entry.key, entry.revision)
        return self._meta.put_if(entry.key, identity.encode(), entry.revision) is not None

    def _logs_of(self, entry: StoredEntry | None) -> dict[TopicName, LogIdentity]:
        try:
            return {} if entry is None else dict(TopicIdentity.decode(entry.value).logs)
        except UnreadableRecord as error:
            _log.error("%s is left as it is: %s", "" if entry is None else entry.key, error)
            raise

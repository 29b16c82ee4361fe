"""Remove the objects and manifests of deleted topics, also of those that were deleted just before a crash.

    /objects-deleted/{log id}    {"topic", "folder"}: stored before the topic is deleted, removed with its last object

A topic that still exists after a crash was not deleted: its note is removed, and nothing else. In a cluster its record
in the metadata store says so, else the folder. The first fence goes first: a log without it is one that is being
removed. A topic whose record can't be read keeps everything.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import deque
from collections.abc import Callable
from functools import partial

from frazil.core.backoff import backoff, jittered
from frazil.core.errors import FrazilError, InvalidInput, TryLater
from frazil.core.names import TopicName
from frazil.log.storage import Storage
from frazil.meta.store import MetaStore, StoredEntry
from frazil.meta.topic_records import TopicIdentity, UnreadableRecord, topic_record_key
from frazil.objects.manifests import Manifests
from frazil.objects.names import log_folder
from frazil.objects.store import ObjectStore

DELETED = "/objects-deleted/"
AGAIN_SECONDS_MIN, AGAIN_SECONDS_MAX = 1.0, 60.0
DELETE_CHUNK = 1_000
STOP_SECONDS_MAX = 5.0

_log = logging.getLogger("frazil.objects")


class DeletedLogs:
    """One thread removes them. Thread-safe."""

    def __init__(
        self,
        store: ObjectStore,
        meta: MetaStore | None,
        folder: str,
        is_busy: Callable[[str], bool] = lambda _: False,
        *,
        is_clustered: bool = False,
    ) -> None:
        """`folder` names this data folder among all that share the metadata store; `is_busy` tells whether a put for a
        log may still be on its way."""
        self._store = store
        self._meta = meta
        self._folder = folder
        self._is_busy = is_busy
        self._is_clustered = is_clustered
        self._noted: set[str] = set()
        """Logs that this process deletes: whether they are gone is not for `_take_up` to decide."""
        self._changed = threading.Condition()
        self._waiting: deque[str] = deque()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._failures = 0

    def note(self, name: TopicName, log_id: str) -> None:
        """Record durably that the log is deleted now. Raises `MetadataUnavailable`."""
        self._noted.add(log_id)
        if self._meta is not None:
            note = {"topic": str(name), "folder": self._folder}
            self._meta.put_all({DELETED + log_id: json.dumps(note).encode()})

    def start(self, storage: Storage) -> None:
        """Begin with what an earlier process of this folder has left."""
        self._thread = threading.Thread(target=self._work, args=(storage,), name="frazil-objects-deletion", daemon=True)
        self._thread.start()

    def _take_up(self, storage: Storage) -> None:
        for entry in [] if self._meta is None else self._meta.list(DELETED):
            log_id, name = entry.key.removeprefix(DELETED), self._topic_of(entry)
            if name is None or self._meta is None or log_id in self._noted:
                continue
            is_gone = self._is_gone(storage, name, log_id)
            if is_gone is None:
                continue  # its record can't be read: perhaps it is this log, and it is not for a deletion to decide
            if is_gone:
                self._remove_folder(storage, name, log_id)
                self.remove(log_id)
            else:
                self._meta.delete_all([entry.key])

    def _is_gone(self, storage: Storage, name: TopicName, log_id: str) -> bool | None:
        """Return whether a log whose deletion was noted is gone; None if that is not known."""
        if self._is_clustered:
            assert self._meta is not None
            return has_lost_record(self._meta, name, log_id)
        record = storage.admission.record(name)
        if record is None and name in storage.admission.names():
            return None
        return record is None or record.log_id != log_id

    def _remove_folder(self, storage: Storage, name: TopicName, log_id: str) -> None:
        """Remove the folder of a deleted log; a topic of the cluster loses its record first."""
        record = storage.admission.record(name)
        if record is not None and record.log_id == log_id:
            storage.admission.withhold(name)
            storage.admission.remove(name)

    def was_deleted(self, name: TopicName, log_id: str) -> bool:
        """Whether the log of a topic of the cluster was deleted, by this folder: nothing of it is needed any more."""
        if self._meta is None or self._meta.get(DELETED + log_id) is None:
            return False
        return has_lost_record(self._meta, name, log_id) is True

    def remove(self, log_id: str) -> None:
        """Remove the objects of a log that is gone, in the background, until it has succeeded."""
        with self._changed:
            self._waiting.append(log_id)
            self._changed.notify_all()

    @property
    def waiting(self) -> int:
        """Return how many deleted logs may still have objects."""
        return len(self._waiting)

    def stop(self) -> None:
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS_MAX)

    def _topic_of(self, entry: StoredEntry) -> TopicName | None:
        """Return the topic of a note; None if another folder made it, or it can't be read."""
        try:
            note = json.loads(entry.value)
            return TopicName.parse(note["topic"]) if note["folder"] == self._folder else None
        except (ValueError, KeyError, TypeError, InvalidInput) as error:
            _log.warning("%s can't be read: %s", entry.key, error)
            return None

    def _work(self, storage: Storage) -> None:
        while not self._stopping.is_set() and not self._done(lambda: self._take_up(storage), "notes of deleted logs"):
            pass
        while (log_id := self._next()) is not None:
            if self._done(partial(self._remove, log_id), f"objects of the deleted log {log_id}"):
                self._waiting.remove(log_id)
            else:
                self._waiting.rotate(-1)

    def _next(self) -> str | None:
        with self._changed:
            while not self._waiting and not self._stopping.is_set():
                self._changed.wait()
            return None if self._stopping.is_set() else self._waiting[0]

    def _done(self, act: Callable[[], None], what: str) -> bool:
        """Whether it succeeded; otherwise return after a back-off."""
        try:
            act()
        except FrazilError as error:
            self._failures += 1
            if not self._stopping.is_set():
                _log.warning("%s: this is tried again: %s", what, error)
            wait = backoff(self._failures, first=AGAIN_SECONDS_MIN, limit=AGAIN_SECONDS_MAX)
            self._stopping.wait(jittered(wait))
            return False
        self._failures = 0
        return True

    def _remove(self, log_id: str) -> None:
        if self._is_busy(log_id):
            raise TryLater("an object of it is still on its way")
        names = [info.name for info in self._store.walk(log_folder(log_id))]
        self._store.delete(names[:1])
        for at in range(1, len(names), DELETE_CHUNK):
            self._store.delete(names[at : at + DELETE_CHUNK])
        if self._meta is not None:
            Manifests(self._meta).remove_log(log_id)
            self._meta.delete_all([DELETED + log_id])
        _log.info("removed %d objects of the deleted log %s", len(names), log_id)


def has_lost_record(meta: MetaStore, name: TopicName, log_id: str) -> bool | None:
    """Return whether the topic's record has no such log any more; None if the record can't be read."""
    entry = meta.get(topic_record_key(name))
    try:
        logs = {} if entry is None else TopicIdentity.decode(entry.value).logs
    except UnreadableRecord as error:
        _log.error("%s is kept as it is: %s", name, error)
        return None
    return all(one.log_id != log_id for one in logs.values())

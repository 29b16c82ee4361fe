"""The object tier of a data folder that this process owns: everything that works on objects beside the logs.

objects    what is known of each log's objects
uploader   puts rows into the store
guard      keeps rows in the files until they are there
retention  removes old objects whose rows are elsewhere
deleted    removes the objects of deleted topics
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable

from frazil.core.clock import Clock
from frazil.core.errors import CorruptLog
from frazil.core.names import TopicName
from frazil.core.settings import AckLevel, Settings
from frazil.core.settings.lake import ObjectStoreType
from frazil.core.settings.metadata import MetadataType
from frazil.log.retention.guards import Guard
from frazil.log.storage import Storage
from frazil.log.topic_log import TopicLog
from frazil.meta.opening import open_meta
from frazil.node.movers.lease import this_host
from frazil.node.objects.deletion import DeletedLogs
from frazil.node.objects.guard import ObjectsGuard
from frazil.node.objects.retention import ObjectRetention
from frazil.node.objects.tier import OwnObjectTier, StoreRest
from frazil.objects.acks import AckedLogs
from frazil.objects.epoch import EpochClaim
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.manifests import Manifests
from frazil.objects.opening import open_objects
from frazil.objects.upload.uploader import Uploader

_log = logging.getLogger("frazil.objects")


class ObjectParts:
    """Created once the folder is owned; `start` once the storage is open. No request is sent before."""

    def __init__(self, settings: Settings, clock: Clock, owner: EpochClaim | None = None) -> None:
        """`owner` is how other processes see this one: by default, this host."""
        self.settings = settings
        self.store = open_objects(settings)
        self._opened = contextlib.ExitStack()
        no_meta = settings.data is None and settings.metadata.type is MetadataType.SQLITE
        self._meta = None if no_meta else self._opened.enter_context(contextlib.closing(open_meta(settings)))
        self.objects = ObjectsOfLogs(self.store, None if self._meta is None else Manifests(self._meta))
        self._storage: Storage | None = None
        owner = owner or EpochClaim(settings.cluster.broker_id or this_host())
        self._rest = StoreRest(clock)
        self.acks = AckedLogs(settings.objects, lambda: self.objects, lambda: _again(owner), clock)
        self.uploader = Uploader(
            self.objects, settings.objects, owner, clock, self._logs, begins_epochs=not settings.cluster.enabled
        )
        folder = f"{this_host()}:{settings.log_folder.absolute()}"
        self.deleted = DeletedLogs(self.store, self._meta, folder, self._is_busy, is_clustered=settings.cluster.enabled)
        rules = settings.objects
        in_memory = (rules.store or settings.object_store).type is ObjectStoreType.MEMORY
        ends = in_memory and settings.data is not None
        self.guard: Guard = ObjectsGuard(self.objects, self.uploader, ends_with_process=ends)
        self.retention = ObjectRetention(self.objects, rules, clock, self._other_guards, self._open_logs)

    def start(self, storage: Storage) -> None:
        """Upload the open topics of a storage, and go on with deletions. It ends with the storage."""
        self._storage = storage
        storage.attachment = self
        self.deleted.start(storage)
        self.uploader.start()
        self.retention.start()

    def tier_of(self, log: TopicLog) -> OwnObjectTier:
        return OwnObjectTier(self.store, self.objects.of(log.log_id), log, self.uploader, self._rest)

    def deleting(self, name: TopicName, log_id: Callable[[], str]) -> Callable[[], None]:
        try:
            found = log_id()
        except CorruptLog as error:
            _log.error("%s is deleted, and its objects stay, since its log id is unknown: %s", name, error)
            return lambda: None
        self.deleted.note(name, found)
        return lambda: self._deleted(found)

    def close(self) -> None:
        self.uploader.stop()
        self.retention.stop()
        self.deleted.stop()
        self._opened.close()

    def _deleted(self, log_id: str) -> None:
        self.uploader.forget(log_id)
        self.deleted.remove(log_id)

    def _is_busy(self, log_id: str) -> bool:
        return self.uploader.is_busy(log_id) or self.acks.is_busy(log_id)

    def _other_guards(self) -> list[Guard]:
        """Return the guards that keep rows which no tier may lose, also those of a broker that has started since."""
        return [] if self._storage is None else [one for one in self._storage.guards() if one is not self.guard]

    def _logs(self) -> Iterable[TopicLog]:
        """Return the logs to upload; those of ack level `object` store their rows themselves."""
        return [log for log in self._open_logs() if log.ack is not AckLevel.OBJECT]

    def _open_logs(self) -> list[TopicLog]:
        return [] if self._storage is None else [topic.log for topic in self._storage.opened_topics()]


def _again(owner: EpochClaim) -> EpochClaim:
    """Return a new claim of the same owner: each log has its own."""
    return EpochClaim(owner.owner, owner.address)

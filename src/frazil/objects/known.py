"""The objects of all logs as one process knows them: loaded on first use, then kept.

The owner of a log adds what it uploads. Another process sees later objects after `refresh`.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from frazil.core.stored_objects import StoredObject
from frazil.objects.loading import LoadedObjects, check_stored, load_objects
from frazil.objects.log_objects import LogObjects
from frazil.objects.manifests import Manifests
from frazil.objects.reading import name_of
from frazil.objects.store import ObjectMissing, ObjectStore

if TYPE_CHECKING:
    from frazil.objects.epoch import Epoch


class ObjectsOfLogs:
    """Thread-safe. Without manifests, the store is listed."""

    def __init__(self, store: ObjectStore, manifests: Manifests | None = None) -> None:
        self.store = store
        self.manifests = manifests
        self._guard = threading.Lock()
        self._known: dict[str, KnownLog] = {}

    def of(self, log_id: str) -> KnownLog:
        """Return what is known of a log. Nothing is requested yet."""
        with self._guard:
            known = self._known.get(log_id)
            if known is None:
                known = self._known[log_id] = KnownLog(self.store, self.manifests, log_id)
            return known

    def forget(self, log_id: str) -> None:
        """Forget a log that was deleted, or that has another owner now."""
        with self._guard:
            self._known.pop(log_id, None)


class KnownLog:
    """The objects of one log. Reading them blocks on the stores; it raises `ObjectDamaged`, `ObjectStoreUnavailable`
    or `MetadataUnavailable`, and the next call tries again."""

    def __init__(self, store: ObjectStore, manifests: Manifests | None, log_id: str) -> None:
        self.store = store
        self.manifests = manifests
        self._loading = threading.Lock()
        self._objects: LogObjects | None = None
        self._confirming = threading.Lock()
        self._confirmed: LogObjects | None = None
        self.log_id = log_id
        self.beginning = threading.Lock()
        self.epoch: Epoch | None = None
        """The epoch that this process has begun last, until it lets the log go."""

    def now(self) -> LogObjects | None:
        return self._objects

    def load(self) -> LogObjects:
        known = self._objects
        if known is not None:
            return known
        with self._loading:
            return self._objects or self._loaded()

    def refresh(self) -> LogObjects:
        """Load those that were added since, for a log that another process uploads; all of them if some are gone."""
        with self._loading:
            if self._objects is not None and self.epoch is not None and self.epoch.fenced is None:
                return self._objects  # this process adds them itself
            known = () if self._objects is None else self._objects.all()
            return self._loaded(known if known and self._is_there(known[0]) else ())

    def confirm(self, first: int) -> LogObjects:
        """Return the objects; raises `ObjectDamaged` if the store lacks one with rows from `first` on.

        Manifests record what was stored. The store is listed once to confirm it; later objects are this process's own.
        """
        with self._confirming:
            objects = self.load()
            if objects is not self._confirmed:
                check_stored(self.store, [one for one in objects.all() if one.end > first], objects.all)
                self._confirmed = objects
            return objects

    def replace(self, objects: LogObjects, epoch: Epoch | None = None) -> None:
        """Use these from now on: the log's owner has begun an epoch, and adds to them."""
        with self._loading:
            self._objects = objects
            self.epoch = epoch or self.epoch

    def _is_there(self, one: StoredObject) -> bool:
        try:
            return self.store.head(name_of(one)).size_bytes == one.size_bytes
        except ObjectMissing:
            return False

    def _loaded(self, before: Sequence[StoredObject] = ()) -> LogObjects:
        found: LoadedObjects = load_objects(self.store, self.log_id, self.manifests, before)
        self._objects = LogObjects(self.log_id, found.epoch, found.objects)
        return self._objects

"""The claim of a server to its part of the metadata store: one data folder, and one process at a time.

    /broker/owner    {"folder", "path", "process"}    whose folder the prefix belongs to, for good; `format` is the
                                                      version of all records of the prefix, 1 if it is not there
    /broker/session  {"session", "process"}           which process serves it now; goes with its lease

Two servers with one prefix would treat each other's topics as recreated ones, and drop their subscriptions. All changes
of the store are fenced by the session; see `frazil.meta.session`.
"""

from __future__ import annotations

from frazil.broker.store.cluster_claim import cluster_prefix, is_of_cluster
from frazil.core.errors import MetadataInUse, NewerFormat, TryLater
from frazil.core.process.identity import ProcessIdentity
from frazil.core.settings.metadata import MetadataSettings
from frazil.meta.broker_keys import OWNER, SESSION
from frazil.meta.session import TAKE_TRIES_MAX, Held, LeasedSession, decoded, encoded, process_of
from frazil.meta.store import ABSENT, MetaStore

FORMAT_VERSION = 1
SESSION_TTL_MS = 30_000


class Claim:
    """Used by one thread at a time. All calls block."""

    def __init__(
        self,
        meta: MetaStore,
        settings: MetadataSettings,
        folder_id: str,
        path: str,
        ttl_ms: int = SESSION_TTL_MS,
    ) -> None:
        self._meta = meta
        self._settings = settings
        self._folder_id = folder_id
        self._path = path
        self._owner = encoded({"folder": folder_id, "path": path, "process": ProcessIdentity.own().stored()})
        self._session = LeasedSession(meta, SESSION, ttl_ms, self._in_use)

    @property
    def beat_ms(self) -> int:
        """How often to call `look`."""
        return self._session.beat_ms

    def take(self) -> None:
        """Raises `MetadataInUse` if the prefix belongs to another folder, or another process serves it.

        Waits for the lease of a session whose process cannot be checked from here, and may have died.
        """
        self._check_owner()
        self._session.take()
        self._session.fence(self._meta)

    def look(self) -> Held:
        """Renew the claim, or take it again. Raises `MetadataInUse` if another process has it by now."""
        held = self._session.look()
        if held is Held.TAKEN_AGAIN:
            self._check_owner()
        return held

    def release(self) -> None:
        """Release it, so that the next process need not wait for the lease."""
        self._session.release()

    def _check_owner(self) -> None:
        """Claim the prefix for this folder, or check that it is."""
        for _ in range(TAKE_TRIES_MAX):
            found = self._meta.get(OWNER)
            if found is None:
                if self._meta.put_if(OWNER, self._owner, ABSENT) is not None:
                    return
                continue
            owner = decoded(found.value)
            if int(owner.get("format", FORMAT_VERSION)) > FORMAT_VERSION:
                raise NewerFormat(f"{self._key('')} at {self._store}", int(owner["format"]), FORMAT_VERSION)
            if is_of_cluster(owner):
                raise cluster_prefix(self._settings)
            if owner.get("folder") != self._folder_id:
                last = process_of(found.value) or "an unknown process"
                where = f"the data folder {owner.get('path')}, last of {last}"
                advice = f"give {self._path} a prefix of its own, or delete {self._key(OWNER)} if that folder is gone"
                raise MetadataInUse(self._store, self._settings.prefix, where, f"{advice} for good")
            return
        raise TryLater(f"metadata: {OWNER} was changed by others {TAKE_TRIES_MAX} times meanwhile; try again")

    def _in_use(self, holder: str) -> MetadataInUse:
        return MetadataInUse(self._store, self._settings.prefix, holder, "stop it first, or give each its own prefix")

    @property
    def _store(self) -> str:
        return ", ".join(self._settings.endpoints)

    def _key(self, key: str) -> str:
        return self._settings.root + key

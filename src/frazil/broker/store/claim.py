"""The claim of a server to its part of the metadata store: one data folder, and one process at a time.

    /broker/owner    {"folder", "path", "process"}    whose folder the prefix belongs to, for good; `format` is the
                                                      version of all records of the prefix, 1 if it is not there
    /broker/session  {"session", "process"}           which process serves it now; goes with its lease

Two servers with one prefix would treat each other's topics as recreated ones, and drop their subscriptions. All changes
of the store are fenced by the session: a process that lost it, because it paused past its lease or because etcd was
restored, changes nothing until it has taken the session again.
"""

from __future__ import annotations

import enum
import json
import logging
import secrets
from typing import Any

from frazil.core.errors import LeaseExpired, MetadataInUse, NewerFormat, RevisionCompacted, TryLater
from frazil.core.process.identity import ProcessIdentity
from frazil.core.settings.metadata import MetadataSettings
from frazil.meta.broker_keys import OWNER, SESSION
from frazil.meta.store import ABSENT, Lease, MetaStore, StoredEntry

FORMAT_VERSION = 1
SESSION_TTL_MS = 30_000
TAKE_TRIES_MAX = 20

_log = logging.getLogger("frazil.broker")


class Held(enum.Enum):
    """The state of a claim after a check."""

    KEPT = enum.auto()
    TAKEN_AGAIN = enum.auto()
    """It was lost for a while, or the store was restored from an older backup: the stored state may be old."""


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
        self._ttl_ms = ttl_ms
        process = ProcessIdentity.own().stored()
        self._owner = _encoded({"folder": folder_id, "path": path, "process": process})
        self._value = _encoded({"session": secrets.token_hex(16), "process": process})
        self._lease: Lease | None = None
        self._revision = ABSENT
        self._steps_back = 0

    @property
    def beat_ms(self) -> int:
        """How often to call `look`."""
        return self._ttl_ms // 6

    def take(self) -> None:
        """Raises `MetadataInUse` if the prefix belongs to another folder, or another process serves it.

        Waits for the lease of a session whose process cannot be checked from here, and may have died.
        """
        self._check_owner()
        for _ in range(TAKE_TRIES_MAX):
            if self._take_session():
                self._meta.fence(SESSION, self._value)
                return
            listing = self._meta.snapshot(SESSION)
            for found in listing.entries:
                self._see_off(found, listing.revision)
        raise self._contended()

    def look(self) -> Held:
        """Renew the claim, or take it again. Raises `MetadataInUse` if another process has it by now."""
        assert self._lease is not None
        try:
            if self._meta.keep_alive(self._lease):
                revision = self._meta.put_if(SESSION, self._value, self._revision, self._lease)
                if revision is not None:
                    self._revision = revision
                    return self._kept()
        except LeaseExpired:
            pass
        return self._look_again()

    def release(self) -> None:
        """Release it, so that the next process need not wait for the lease."""
        if self._lease is not None:
            self._meta.revoke_lease(self._lease)
            self._lease = None

    def _look_again(self) -> Held:
        for _ in range(TAKE_TRIES_MAX):
            found = self._meta.get(SESSION)
            if found is not None and found.value != self._value:
                raise self._in_use(found)
            if found is not None and found.revision > self._revision:  # our own write whose answer was lost
                self._revision = found.revision
                return self._kept()
            if found is None or self._meta.delete(SESSION, found.revision):
                self._revision = ABSENT
                if self._take_session():
                    self._check_owner()
                    return Held.TAKEN_AGAIN
        raise self._contended()

    def _kept(self) -> Held:
        """A restored store may have the session of the last check, but lack later changes."""
        before, self._steps_back = self._steps_back, self._meta.steps_back
        return Held.KEPT if before == self._steps_back else Held.TAKEN_AGAIN

    def _see_off(self, found: StoredEntry, revision: int) -> None:
        """Wait until the session of another process, seen at a revision, can be taken, or raise `MetadataInUse`."""
        process = _process(found)
        running = None if process is None else process.is_running()
        if running is False:
            self._meta.delete(SESSION, found.revision)
            return
        if running is None:
            _log.warning("%s is held by %s; waiting for its lease to end", SESSION, process or "another process")
            with self._meta.watch(SESSION, revision) as watch:
                try:
                    change = watch.next(2 * self._ttl_ms)
                except RevisionCompacted:
                    return  # check again
                if change is not None and change.value is None:
                    return
        raise self._in_use(found)

    def _take_session(self) -> bool:
        lease = self._meta.grant_lease(self._ttl_ms)
        try:
            revision = self._meta.put_if(SESSION, self._value, ABSENT, lease)
        except LeaseExpired:
            return False
        if revision is None:
            self._meta.revoke_lease(lease)
            return False
        self._lease, self._revision = lease, revision
        return True

    def _check_owner(self) -> None:
        """Claim the prefix for this folder, or check that it is."""
        for _ in range(TAKE_TRIES_MAX):
            found = self._meta.get(OWNER)
            if found is None:
                if self._meta.put_if(OWNER, self._owner, ABSENT) is not None:
                    return
                continue
            owner = _decoded(found)
            if int(owner.get("format", FORMAT_VERSION)) > FORMAT_VERSION:
                raise NewerFormat(f"{self._key('')} at {self._store}", int(owner["format"]), FORMAT_VERSION)
            if owner.get("folder") != self._folder_id:
                where = f"the data folder {owner.get('path')}, last of {_process(found) or 'an unknown process'}"
                advice = f"give {self._path} a prefix of its own, or delete {self._key(OWNER)} if that folder is gone"
                raise MetadataInUse(self._store, self._settings.prefix, where, f"{advice} for good")
            return

    def _in_use(self, found: StoredEntry) -> MetadataInUse:
        owner = str(_process(found) or "another process")
        return MetadataInUse(self._store, self._settings.prefix, owner, "stop it first, or give each its own prefix")

    def _contended(self) -> TryLater:
        return TryLater(f"metadata: {SESSION} was changed by others {TAKE_TRIES_MAX} times meanwhile; try again")

    @property
    def _store(self) -> str:
        return ", ".join(self._settings.endpoints)

    def _key(self, key: str) -> str:
        return self._settings.root + key


def _encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def _decoded(entry: StoredEntry) -> dict[str, Any]:
    try:
        value = json.loads(entry.value)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _process(entry: StoredEntry) -> ProcessIdentity | None:
    return ProcessIdentity.restored(_decoded(entry).get("process"))

"""A key that one process holds by a lease, and by which all changes of its metadata store are fenced.

A process that lost the key, because it paused past its lease or because the store was restored, changes nothing until
it has taken the key again. A dead process of this machine is replaced at once; of others the lease decides.
"""

from __future__ import annotations

import enum
import json
import logging
import secrets
from collections.abc import Callable
from typing import Any

from frazil.core.errors import FrazilError, LeaseExpired, RevisionCompacted, TryLater
from frazil.core.process.identity import ProcessIdentity
from frazil.meta.store import ABSENT, Lease, MetaStore, StoredEntry

TAKE_TRIES_MAX = 20

_log = logging.getLogger("frazil.meta")


class Held(enum.Enum):
    """The state of a session after a check."""

    KEPT = enum.auto()
    TAKEN_AGAIN = enum.auto()
    """It was lost for a while, or the store was restored from an older backup: the stored state may be old."""


class LeasedSession:
    """Used by one thread at a time. All calls block.

    KEY    {"session", "process", "taken"}    which process holds it; goes with its lease

    `taken` counts how often it was taken, if `fences_anew`.
    """

    def __init__(
        self,
        meta: MetaStore,
        key: str,
        ttl_ms: int,
        in_use: Callable[[str], FrazilError],
        *,
        writes_beats: bool = True,
        fences_anew: bool = False,
        process: ProcessIdentity | None = None,
        is_running: Callable[[ProcessIdentity], bool | None] = ProcessIdentity.is_running,
    ) -> None:
        """`in_use` makes the error if another process holds the key, which it is given in words.

        `writes_beats`: each look writes the key, so that its revision distinguishes it from the key of a restored
        backup; without, no watch of the key wakes.

        `fences_anew`: a session that was lost and taken again has another value, so fenced stores still change nothing
        until `fence` is called again.
        """
        self.id = secrets.token_hex(16)
        self.lease: Lease | None = None
        """Other keys put with it end with the session. Replaced when the session is taken again."""
        self._meta = meta
        self._key = key
        self._ttl_ms = ttl_ms
        self._in_use = in_use
        self._writes_beats = writes_beats
        self._fences_anew = fences_anew
        self._is_running = is_running
        self._process = process or ProcessIdentity.own()
        self._taken = 0
        self.value = self._next_value()
        self._revision = ABSENT
        self._steps_back = 0

    @property
    def beat_ms(self) -> int:
        """How often to call `look`."""
        return self._ttl_ms // 6

    def take(self) -> None:
        """Take the key, and wait for the lease of a process that cannot be checked from here, and may have died."""
        for _ in range(TAKE_TRIES_MAX):
            if self._take_at(ABSENT):
                return
            listing = self._meta.snapshot(self._key)
            for found in listing.entries:
                if found.key == self._key and self._replaced(found, listing.revision):
                    return
        raise self._contended()

    def fence(self, *stores: MetaStore, value: bytes | None = None) -> None:
        """Let these change nothing while the session is lost; `value` is that of an earlier moment."""
        for store in stores:
            store.fence(self._key, self.value if value is None else value)

    def look(self) -> Held:
        """Renew the session, or take it again. Raises the error of `in_use` if another process has it by now."""
        assert self.lease is not None
        try:
            if self._meta.keep_alive(self.lease) and self._is_there(self.lease):
                return self._kept()
        except LeaseExpired:
            pass
        return self._look_again()

    def release(self) -> None:
        """Release it, so that the next process need not wait for the lease."""
        if self.lease is not None:
            self._meta.revoke_lease(self.lease)
            self.lease = None

    def _is_there(self, lease: Lease) -> bool:
        """Whether the key is as it was at the last look."""
        if not self._writes_beats:
            found = self._meta.get(self._key)
            return found is not None and (found.value, found.revision) == (self.value, self._revision)
        revision = self._meta.put_if(self._key, self.value, self._revision, lease)
        if revision is not None:
            self._revision = revision
        return revision is not None

    def _look_again(self) -> Held:
        for _ in range(TAKE_TRIES_MAX):
            found = self._meta.get(self._key)
            if found is not None and decoded(found.value).get("session") != self.id:
                raise self._in_use(holder_of(found.value))
            is_same = found is not None and found.value == self.value
            if found is not None and is_same and found.revision > self._revision:
                # our own write, whose answer was lost
                self._revision = found.revision
                return self._kept()
            if found is None or self._meta.delete(self._key, found.revision):
                self._revision = ABSENT
                if self._take_at(ABSENT):
                    return Held.TAKEN_AGAIN
        raise self._contended()

    def _kept(self) -> Held:
        """A restored store may have the session of the last check, but lack later changes."""
        before, self._steps_back = self._steps_back, self._meta.steps_back
        return Held.KEPT if before == self._steps_back else Held.TAKEN_AGAIN

    def _replaced(self, found: StoredEntry, revision: int) -> bool:
        """Replace the session of a dead process in one step, so that nobody sees its key gone.

        Returns False if the key is free, or was changed, by now.
        """
        process = process_of(found.value)
        running = None if process is None else self._is_running(process)
        if running is False:
            return self._take_at(found.revision)
        if running is None:
            _log.warning("%s is held by %s; waiting for its lease to end", self._key, process or "another process")
            with self._meta.watch(self._key, revision) as watch:
                try:
                    change = watch.next(2 * self._ttl_ms)
                except RevisionCompacted:
                    return False  # check again
                if change is not None and change.value is None:
                    return False
        raise self._in_use(holder_of(found.value))

    def _take_at(self, revision: int) -> bool:
        lease, value = self._meta.grant_lease(self._ttl_ms), self._next_value()
        try:
            made = self._meta.put_if(self._key, value, revision, lease)
        except LeaseExpired:
            return False
        if made is None:
            self._meta.revoke_lease(lease)
            return False
        self.lease, self._revision, self.value = lease, made, value
        return True

    def _next_value(self) -> bytes:
        """Return the value with which the key is taken next: another one each time, if `fences_anew`."""
        value: dict[str, Any] = {"session": self.id, "process": self._process.stored()}
        if self._fences_anew:
            self._taken += 1
            value["taken"] = self._taken
        return encoded(value)

    def _contended(self) -> TryLater:
        return TryLater(f"metadata: {self._key} was changed by others {TAKE_TRIES_MAX} times meanwhile; try again")


def encoded(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def decoded(value: bytes) -> dict[str, Any]:
    """Decode a JSON object; anything else is empty."""
    try:
        read = json.loads(value)
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


def process_of(value: bytes) -> ProcessIdentity | None:
    return ProcessIdentity.restored(decoded(value).get("process"))


def holder_of(value: bytes) -> str:
    return str(process_of(value) or "another process")

"""The metadata store interface: path-like keys, byte values, changed by compare-and-set on their revision.

Every change gets a revision above all earlier ones in the whole store. So a key that was deleted and recreated never
has one of its earlier revisions, and a caller with a stale revision changes nothing. A list, followed by a watch from
its revision, sees everything exactly once.

Calls block on a disk or a server, and may come from any thread: an asyncio program makes them in threads.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from frazil.core.errors import Closed, InvalidInput

ABSENT = 0
"""The revision of a missing key."""

KEY_BYTES_MAX = 1024
VALUE_BYTES_MAX = 1024 * 1024
LEASE_MS_MAX = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class StoredEntry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class KeyAt:
    """A key as a caller has read it: a change on this condition is made only while nobody has changed the key since."""

    key: str
    revision: int
    """`ABSENT` if there was no such key."""


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries at one revision of the store: a watch from that revision sees all later changes."""

    entries: list[StoredEntry]
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """A key that was set, or deleted; a deleted key has no value."""

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Keys put with a lease are deleted if the lease is not kept alive this long. A store may grant more than
    requested.
    """

    id: int
    ttl_ms: int


class Watch(abc.ABC):
    """All changes under a prefix after a revision, once each and in order. One thread reads it; any thread may close
    it.

    While the store is unavailable, a watch waits, and then continues where it was.
    """

    def __init__(self, prefix: str, after_revision: int) -> None:
        self._prefix = prefix
        self._position = after_revision
        self._ready: deque[Change] = deque()

    @property
    def revision(self) -> int:
        """All changes up to this revision were returned. The keys of a lease are deleted at one revision, so the
        revision of a change may be higher.
        """
        return self._ready[0].revision - 1 if self._ready else self._position

    def next(self, timeout_ms: int | None = None) -> Change | None:
        """Return the next change, or None on timeout. Raises `RevisionCompacted` if it is no longer stored."""
        if not self._ready:
            changes, self._position = self._wait(timeout_ms)
            self._ready.extend(changes)
        return self._ready.popleft() if self._ready else None

    def __iter__(self) -> Iterator[Change]:
        """Iterate until the watch or its store is closed."""
        while True:
            try:
                change = self.next()
            except Closed:
                return
            if change is not None:
                yield change

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @abc.abstractmethod
    def close(self) -> None:
        """Close the watch; a blocked reader gets `Closed`."""

    @abc.abstractmethod
    def _wait(self, timeout_ms: int | None) -> tuple[list[Change], int]:
        """Wait for the changes of whole revisions, and return them with the revision that they complete."""


class MetaStore(Protocol):
    """The metadata store, used from several threads and processes. A returned change is durable.

    A call raises `MetadataUnavailable` when the store did not answer in time; the next call retries. If `unclear` is
    set, the requested change may have been made: the next `get` of this store returns the final state.
    """

    def get(self, key: str) -> StoredEntry | None: ...

    def put_if(
        self,
        key: str,
        value: bytes,
        revision: int,
        lease: Lease | None = None,
        also: Mapping[str, bytes] | None = None,
    ) -> int | None:
        """Set the value if the key still has that revision (`ABSENT`: the key does not exist).

        Returns the new revision, or None if another caller was faster; then nothing is changed. With a lease, the key
        is deleted with the lease (`LeaseExpired` if it has already expired); without one it stays, whatever held it
        before. `also` are set in the same step, whatever they are by now; a store may set a part of many in
        further steps.
        """
        ...

    def put_all(self, values: Mapping[str, bytes], *, only_at: KeyAt | None = None) -> bool:
        """Set these values: the last writer wins. A store may do it in several steps.

        Each step is atomic, at one revision; after an error the earlier steps stay. `only_at` must hold at each step;
        returns False at the first one where it does not.
        """
        ...

    def delete(self, key: str, revision: int) -> bool:
        """Delete the key if it still has that revision; returns whether it was deleted."""
        ...

    def delete_all(self, keys: Collection[str], below: Collection[str] = (), *, only_at: KeyAt | None = None) -> bool:
        """Delete these keys, and all keys that begin with a prefix in `below`, whatever they are by now.

        A store may do it in several steps if there are many keys: `below` in the first one, the keys in their order.
        Each step is atomic, at one revision; after an error the earlier steps stay. `only_at` as in `put_all`.
        """
        ...

    def list(self, prefix: str, suffix: str = "") -> list[StoredEntry]:
        """Return all entries with this prefix and suffix, sorted by key, as one consistent snapshot."""
        ...

    def snapshot(self, prefix: str) -> Listing:
        """List the entries together with the revision of the snapshot."""
        ...

    def watch(self, prefix: str, after_revision: int) -> Watch: ...

    def grant_lease(self, ttl_ms: int) -> Lease: ...

    def keep_alive(self, lease: Lease) -> bool:
        """Renew the lease for its full duration; returns False if it has expired. Call it every
        third of the duration.
        """
        ...

    def revoke_lease(self, lease: Lease) -> None:
        """Revoke the lease and delete its keys. A revoked lease stays revoked."""
        ...

    @property
    def steps_back(self) -> int:
        """How often the store was found at a lower revision than before, as after a restore from an older backup.

        A store that cannot detect it returns 0.
        """
        ...

    def fence(self, key: str, value: bytes) -> None:
        """Let this object change nothing but that key, unless the key has that value; otherwise it raises `Fenced`.

        The store checks it atomically with the change, so a process that lost the key while it was paused changes
        nothing.
        """
        ...

    def close(self) -> None: ...


def check_key(key: str) -> None:
    if not isinstance(key, str) or not key.startswith("/") or "\0" in key or len(key.encode()) > KEY_BYTES_MAX:
        raise InvalidInput(f"key: must begin with / and have at most {KEY_BYTES_MAX} bytes, not {key!r:.80}")


def check_value(value: bytes) -> None:
    if not isinstance(value, bytes):
        raise InvalidInput(f"value: must be bytes, not {type(value).__name__}")
    if len(value) > VALUE_BYTES_MAX:
        raise InvalidInput(f"value: has {len(value)} bytes, and at most {VALUE_BYTES_MAX} are kept under one key")


def check_ttl(ttl_ms: int) -> None:
    if not 0 < ttl_ms <= LEASE_MS_MAX:
        raise InvalidInput(f"ttl_ms: must be between 1 and {LEASE_MS_MAX}, not {ttl_ms}")

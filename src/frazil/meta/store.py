"""The port to a store of small facts: keys like paths, values of bytes, changed only by who knows the present one.

Every change gets a revision above all before it, in the whole store. So a key that was deleted and made again never has
a revision that it had before, and whoever holds an old one changes nothing. A list and the watch after its revision see
everything once.

Calls wait for a disk or a server, and may come from any thread: a program on asyncio makes them in threads.
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
"""The revision of a key that is not there."""

KEY_BYTES_MAX = 1024
VALUE_BYTES_MAX = 1024 * 1024
LEASE_MS_MAX = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class Entry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True, slots=True)
class Listing:
    """Entries as they were at a revision of the store: a watch after it sees all that came later."""

    entries: list[Entry]
    revision: int


@dataclass(frozen=True, slots=True)
class Change:
    """A key that was set, or deleted: then it has no value."""

    key: str
    value: bytes | None
    revision: int


@dataclass(frozen=True, slots=True)
class Lease:
    """Keys put with it are deleted when it was not kept alive for so long. A store may grant more than was asked."""

    id: int
    ttl_ms: int


class Watch(abc.ABC):
    """Every change under a prefix after a revision, once and in order. One thread takes from it; any may close it.

    While the store can't be had a watch waits, and goes on where it was.
    """

    def __init__(self, prefix: str, after_revision: int) -> None:
        self._prefix = prefix
        self._position = after_revision
        self._ready: deque[Change] = deque()

    @property
    def revision(self) -> int:
        """Everything up to here was taken. Keys of a lease go at one revision, so that of a change may be ahead."""
        return self._ready[0].revision - 1 if self._ready else self._position

    def next(self, timeout_ms: int | None = None) -> Change | None:
        """The next change, or None if there was none for so long. `RevisionCompacted` if it is no longer known."""
        if not self._ready:
            changes, self._position = self._wait(timeout_ms)
            self._ready.extend(changes)
        return self._ready.popleft() if self._ready else None

    def __iter__(self) -> Iterator[Change]:
        """Until the watch or its store is closed."""
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
        """Whoever waits for a change gets `Closed`."""

    @abc.abstractmethod
    def _wait(self, timeout_ms: int | None) -> tuple[list[Change], int]:
        """Changes of whole revisions, and the revision up to which there are no others."""


class MetaStore(Protocol):
    """Used from several threads and processes. What a call has returned is durable.

    A call raises `MetadataUnavailable` when the store did not answer in time; the next call tries anew. If `unclear`
    is set, the change that was asked for may have been made: the next `get` of this store tells, and is not overtaken.
    """

    def get(self, key: str) -> Entry | None: ...

    def put_if(self, key: str, value: bytes, revision: int, lease: Lease | None = None) -> int | None:
        """Set the value if the key still has that revision (`ABSENT`: is not there).

        Returns the new revision, or None if another was quicker; then nothing is changed. With a lease the key goes
        when that does (`LeaseExpired` if it has already); without one it stays, whatever held it before.
        """
        ...

    def put_all(self, values: Mapping[str, bytes]) -> None:
        """Set these, whatever they are by now: the last one wins. A store may do it in several steps.

        Within a step all or nothing is set, at one revision; after an error the earlier steps stay.
        """
        ...

    def delete(self, key: str, revision: int) -> bool:
        """Remove the key if it still has that revision; whether it was removed."""
        ...

    def delete_all(self, keys: Collection[str], below: Collection[str] = ()) -> None:
        """Remove these keys, and all keys that begin with a prefix of `below`, whatever they are by now.

        A store may do it in several steps if there are many keys: `below` in the first one, the keys in their order.
        Within a step all or nothing is removed, at one revision; after an error the earlier steps stay.
        """
        ...

    def list(self, prefix: str, suffix: str = "") -> list[Entry]:
        """All entries whose keys begin and end so, sorted by key, as they were at one moment."""
        ...

    def snapshot(self, prefix: str) -> Listing:
        """The same, with the revision of that moment."""
        ...

    def watch(self, prefix: str, after_revision: int) -> Watch: ...

    def grant_lease(self, ttl_ms: int) -> Lease: ...

    def keep_alive(self, lease: Lease) -> bool:
        """Let it last for its whole time again; False if it has expired. Call it every third of that time."""
        ...

    def revoke_lease(self, lease: Lease) -> None:
        """End it now, with the keys it holds. One that has ended stays so."""
        ...

    @property
    def steps_back(self) -> int:
        """How often the store was found at a lower revision than before, as after it was restored from an older copy.

        A store that does not notice it says 0.
        """
        ...

    def fence(self, key: str, value: bytes) -> None:
        """From now on this object changes nothing, but that key, unless the key has that value: `Fenced`.

        The store checks it in the same step as the change, so whoever lost the key while it slept changes nothing.
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

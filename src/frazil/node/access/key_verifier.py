"""Verification of API keys, bounded against floods of wrong ones.

The slow hash runs in two threads of its own. What is bounded:

    keys whose hash waits or runs     `QUEUE_MAX`; then `TryLater`
    of them for one key id            `PER_ID_MAX`: wrong secrets for one id leave a thread for the others
    wrong secrets of one id           `FAILURES_PER_S_MAX` in a second; further ones are not hashed: `TryLater`
    verified and wrong keys kept      `CACHED_MAX` each, by a keyed hash: the keys themselves are not in memory

An unknown id is refused at once: ids are public. A verified key stays usable during a flood against its id.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import threading
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from frazil.core.clock import Clock
from frazil.core.errors import TryLater, Unauthenticated
from frazil.core.principal import Principal
from frazil.node.access.directory import AccessDirectory
from frazil.node.access.keys import KEY_BYTES_MAX, PREFIX, PRINCIPAL_PREFIX, KeyRecord, SecretHash, parse_key

THREADS = 2
QUEUE_MAX = 32
PER_ID_MAX = 2
FAILURES_PER_S_MAX = 5
CACHED_MAX = 10_000
CACHED_US_MAX = 600_000_000
RETRY_AFTER_MS = 1_000
_SECOND_US = 1_000_000
_SKIPPED = len(PRINCIPAL_PREFIX)

Kept = TypeVar("Kept")


class RecentEntries(Generic[Kept]):
    """A bounded map that forgets the least recently added entry. Any thread may call it."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._guard = threading.Lock()
        self._entries: OrderedDict[bytes, Kept] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: bytes) -> Kept | None:
        return self._entries.get(key)

    def put(self, key: bytes, value: Kept) -> None:
        with self._guard:
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self._count_max:
                self._entries.popitem(last=False)


@dataclass(frozen=True, slots=True)
class KeyHolder(Principal):
    """The caller with a key. It is valid as long as the key has the secret that the caller presented."""

    digest: bytes = field(default=b"", repr=False, compare=False)
    """The hash of that secret: after a rotation, streams that the old one has opened end too."""


class _VerifiedKey(NamedTuple):
    who: KeyHolder
    until_us: int
    """Monotonic time at which it is hashed again."""


class _Attempts:
    """Attempts on one key id."""

    __slots__ = ("failures", "in_flight", "since_us")

    def __init__(self) -> None:
        self.in_flight = 0
        self.failures = 0
        self.since_us = 0

    def may_try(self, now_us: int) -> bool:
        if now_us - self.since_us >= _SECOND_US:
            self.since_us, self.failures = now_us, 0
        return self.in_flight < PER_ID_MAX and self.failures + self.in_flight < FAILURES_PER_S_MAX


class KeyVerifier:
    """Verifies API keys. A `Verifier`; any thread and any event loop may call it."""

    def __init__(self, directory: AccessDirectory, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._pool = ThreadPoolExecutor(THREADS, "frazil-keys")
        self._seed = secrets.token_bytes(32)
        self._verified: RecentEntries[_VerifiedKey] = RecentEntries(CACHED_MAX)
        self._wrong: RecentEntries[KeyRecord] = RecentEntries(CACHED_MAX)
        self._guard = threading.Lock()
        self._pending: dict[bytes, Future[SecretHash | None]] = {}
        self._attempts: dict[str, _Attempts] = {}

    def cached(self, secret: str) -> Principal | None:
        if len(secret) > KEY_BYTES_MAX or not secret.startswith(PREFIX):
            return None
        found = self._verified.get(self._digest(secret))
        if found is None or self._clock.monotonic_us() >= found.until_us:
            return None
        return self._still(found.who)

    def _still(self, who: KeyHolder) -> KeyHolder | None:
        """Return the caller of a key that was verified once, if it has not expired and still has its secret."""
        if who.expires_us is not None and self._clock.now_us() >= who.expires_us:
            return None
        return who if self.is_valid(who) else None

    async def verify(self, secret: str) -> Principal | None:
        if not secret.startswith(PREFIX):
            return None
        known = self.cached(secret)
        if known is not None:
            return known
        given = parse_key(secret)
        record = None if given is None else self._directory.key(given.id)
        if given is None or record is None or not record.is_current(self._clock.now_us()):
            raise Unauthenticated
        digest = self._digest(secret)
        if self._wrong.get(digest) is record:  # a record that has changed since may have this secret
            raise Unauthenticated
        try:
            pending = self._hashed(digest, record, given.secret)
        except TryLater:
            lapsed = self._verified.get(digest)  # it was right before, and others try wrong ones
            known = None if lapsed is None else self._still(lapsed.who)
            if known is None:
                raise
            return known
        matching = await asyncio.shield(asyncio.wrap_future(pending))
        if matching is None:
            raise Unauthenticated
        return _holder(record, matching)

    def is_valid(self, who: Principal) -> bool:
        """Whether the key of a caller still exists and has its secret. True for other kinds of callers.

        When the caller's credentials expire, by `expires_us`, is the gate's to check.
        """
        if not who.name.startswith(PRINCIPAL_PREFIX):
            return True
        record = self._directory.key(who.name[_SKIPPED:])
        if record is None:
            return False
        if type(who) is not KeyHolder:
            return record.expires_us is None or record.is_current(self._clock.now_us())
        for one in record.secrets:  # the key's own end, which never changes, is in the `Principal`
            if one.digest == who.digest:
                return one.until_us is None or one.is_current(self._clock.now_us())
        return False

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _digest(self, secret: str) -> bytes:
        """A keyed hash: faster than an HMAC, and as safe."""
        given = secret.encode("utf-8", "surrogatepass")
        return hashlib.blake2b(given, key=self._seed, digest_size=32).digest()

    def _hashed(self, digest: bytes, record: KeyRecord, secret: str) -> Future[SecretHash | None]:
        """Queue the slow hash, once for all concurrent callers with this key; or raise `TryLater`."""
        with self._guard:
            pending = self._pending.get(digest)
            if pending is not None:
                return pending
            attempts = self._attempts.get(record.id) or self._new_attempts(record.id)
            if len(self._pending) >= QUEUE_MAX or not attempts.may_try(self._clock.monotonic_us()):
                raise TryLater(
                    f"too many keys wait for a check; try again in {RETRY_AFTER_MS} ms", retry_after_ms=RETRY_AFTER_MS
                )
            attempts.in_flight += 1
            try:
                pending = self._pool.submit(self._match, digest, record, secret)
            except BaseException:  # it was closed
                attempts.in_flight -= 1
                raise
            self._pending[digest] = pending
        pending.add_done_callback(lambda done: self._finish(digest, attempts, done))
        return pending

    def _match(self, digest: bytes, record: KeyRecord, secret: str) -> SecretHash | None:
        """Hash in a thread of the pool, and remember the outcome."""
        found = record.matching(secret, self._clock.now_us())
        if found is None:
            self._wrong.put(digest, record)
        else:
            until_us = self._clock.monotonic_us() + CACHED_US_MAX
            self._verified.put(digest, _VerifiedKey(_holder(record, found), until_us))
        return found

    def _finish(self, digest: bytes, attempts: _Attempts, done: Future[SecretHash | None]) -> None:
        with self._guard:
            self._pending.pop(digest, None)
            attempts.in_flight -= 1
            if not done.cancelled() and (done.exception() is not None or done.result() is None):
                attempts.failures += 1

    def _new_attempts(self, key_id: str) -> _Attempts:
        if len(self._attempts) >= CACHED_MAX:
            self._attempts = {name: one for name, one in self._attempts.items() if one.in_flight}
        made = self._attempts[key_id] = _Attempts()
        return made


def _holder(record: KeyRecord, secret: SecretHash) -> KeyHolder:
    ends = [time_us for time_us in (record.expires_us, secret.until_us) if time_us is not None]
    return KeyHolder(record.principal, expires_us=min(ends, default=None), digest=secret.digest)

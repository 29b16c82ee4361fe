"""The embedded metadata store: one SQLite file, durable after each call, shared by threads and processes.

Each thread has its own connection. WAL mode allows reads during a write; `synchronous = FULL` syncs each change before
the call returns. Leases expire by the wall clock, which processes share; the next call removes their keys. Setting the
clock back prolongs no lease beyond its duration; setting it forward expires leases early. A watch is notified of
changes through its own store, and polls the file cheaply for changes by others.
"""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
import threading
import time
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from frazil.core.clock import Clock, SystemClock
from frazil.core.disk.modes import make_private_file, make_private_folder
from frazil.core.errors import Closed, DiskFull, Fenced, FrazilError, LeaseExpired, RevisionCompacted, TryLater
from frazil.meta.sqlite_changes import CHANGES_MAX, CLOCK_SLACK_US, Changing, after_prefix, prepare
from frazil.meta.store import Change, KeyAt, Lease, Listing, StoredEntry, Watch, check_key, check_ttl, check_value

LOCK_WAIT_S_MAX = 30.0
CLOSE_S_MAX = 5.0
_NEEDS_ROOM = (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN)
"""Includes the errors of SQLite when it cannot create or extend one of its files."""
POLL_S = 0.02
"""Maximum delay until a change by another process is noticed."""
ROOM_BYTES_MIN = 256 * 1024
"""With less free space than this, SQLite's I/O errors are treated as a full disk."""

_CHANGES = """
SELECT key, value, revision FROM changes
WHERE revision > ?2 AND substr(key, 1, length(?1)) = ?1 ORDER BY revision, key
"""
_LIST = """
SELECT key, value, revision FROM entries
WHERE key >= ?1 AND key < ?2 AND (?3 = '' OR substr(key, -length(?3)) = ?3) ORDER BY key
"""
_IS_DUE = "SELECT 1 FROM leases WHERE ends_us <= ?1 OR ends_us > ?1 + ttl_ms * 1000 + ?2 LIMIT 1"


class SqliteStore:
    def __init__(self, path: Path, clock: Clock | None = None, changes_max: int = CHANGES_MAX) -> None:
        self._path = path
        self._clock: Clock = clock or SystemClock()
        self._changes_max = changes_max
        self._guard = threading.Lock()
        self._idle = threading.Condition(self._guard)
        self._in_use = 0
        self._own = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._watches: set[SqliteWatch] = set()
        self._fence: tuple[str, bytes] | None = None
        self._closed = False
        self.steps_back = 0
        make_private_folder(path.parent)
        with contextlib.suppress(OSError):  # SQLite reports why it cannot be created
            make_private_file(path)  # SQLite creates its other files with the same mode
        with self._own_errors() as connection:
            prepare(connection, str(path))

    def get(self, key: str) -> StoredEntry | None:
        check_key(key)
        with self._reading() as connection:
            found = connection.execute("SELECT key, value, revision FROM entries WHERE key = ?", (key,)).fetchone()
        return None if found is None else StoredEntry(*found)

    def put_if(
        self,
        key: str,
        value: bytes,
        revision: int,
        lease: Lease | None = None,
        also: Mapping[str, bytes] | None = None,
    ) -> int | None:
        for one, content in {**(also or {}), key: value}.items():
            check_key(one)
            check_value(content)
        with self._changing() as change:
            self._check_fence(change, None if also else key)
            if change.revision_of(key) != revision:
                return None
            if lease is not None and not change.has_lease(lease.id):
                raise LeaseExpired(lease.id)
            if lease is None:
                return change.put({**(also or {}), key: value})
            if also:
                change.put(also)
            return change.put({key: value}, lease.id)

    def put_all(self, values: Mapping[str, bytes], *, only_at: KeyAt | None = None) -> bool:
        for key, value in values.items():
            check_key(key)
            check_value(value)
        if not values:
            return True
        with self._changing() as change:
            self._check_fence(change)
            if not change.holds(only_at):
                return False
            change.put(values)
            return True

    def delete(self, key: str, revision: int) -> bool:
        check_key(key)
        with self._changing() as change:
            self._check_fence(change, key)
            present = change.revision_of(key)
            if present != revision or not present:
                return False
            change.delete([key])
            return True

    def delete_all(self, keys: Collection[str], below: Collection[str] = (), *, only_at: KeyAt | None = None) -> bool:
        for key in (*keys, *below):
            check_key(key)
        with self._changing() as change:
            self._check_fence(change)
            if not change.holds(only_at):
                return False
            change.delete_all(keys, below)
            return True

    def list(self, prefix: str, suffix: str = "") -> list[StoredEntry]:
        return self._snapshot(prefix, suffix).entries

    def snapshot(self, prefix: str) -> Listing:
        return self._snapshot(prefix)

    def _snapshot(self, prefix: str, suffix: str = "") -> Listing:
        check_key(prefix)
        with self._reading() as connection:
            connection.execute("BEGIN")
            try:
                revision = connection.execute("SELECT revision FROM newest").fetchone()[0]
                found = connection.execute(_LIST, (prefix, after_prefix(prefix), suffix))
                return Listing([StoredEntry(*row) for row in found], revision)
            finally:
                connection.execute("ROLLBACK")

    def watch(self, prefix: str, after_revision: int) -> Watch:
        check_key(prefix)
        with self._own_errors():
            watch = SqliteWatch(self, prefix, after_revision)
        with self._guard:
            self._watches.add(watch)
        return watch

    def grant_lease(self, ttl_ms: int) -> Lease:
        check_ttl(ttl_ms)
        with self._changing() as change:
            return Lease(change.grant(ttl_ms), ttl_ms)

    def keep_alive(self, lease: Lease) -> bool:
        with self._changing() as change:
            return change.prolong(lease.id)

    def revoke_lease(self, lease: Lease) -> None:
        with self._changing() as change:
            change.end_lease(lease.id)

    def fence(self, key: str, value: bytes) -> None:
        check_key(key)
        check_value(value)
        self._fence = key, value

    def close(self) -> None:
        with self._guard:
            self._closed = True
            is_idle = self._idle.wait_for(lambda: not self._in_use, CLOSE_S_MAX)
            connections, self._all = self._all if is_idle else [], []  # SQLite must not close one that is in use
            watches, self._watches = self._watches, set()
        for watch in watches:
            watch.close()
        for connection in connections:
            connection.close()

    # --- for watches

    def connect(self) -> sqlite3.Connection:
        """Open a separate connection; the caller closes it."""
        if self._closed:
            raise Closed(f"the store {self._path}")
        connection = sqlite3.connect(self._path, timeout=LOCK_WAIT_S_MAX, isolation_level=None, check_same_thread=False)
        connection.execute("PRAGMA synchronous = FULL")
        return connection

    def expire(self) -> None:
        """Remove the keys of expired leases."""
        with self._changing():
            pass

    def now_us(self) -> int:
        return self._clock.now_us()

    def forget(self, watch: SqliteWatch) -> None:
        with self._guard:
            self._watches.discard(watch)

    def problem(self, error: sqlite3.Error) -> FrazilError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if self._closed:
            return Closed(f"the store {self._path}")
        if code == sqlite3.SQLITE_FULL or (code in _NEEDS_ROOM and self._has_no_room()):
            return DiskFull(str(self._path), str(error))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return TryLater(f"{self._path} is locked by another process; try again", path=str(self._path))
        return FrazilError(
            f"{self._path} cannot be used: {error}; put it back from a copy, or move it away", path=str(self._path)
        )

    def _has_no_room(self) -> bool:
        try:
            return shutil.disk_usage(self._path.parent).free < ROOM_BYTES_MIN
        except OSError:
            return False

    # --- transactions

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        with self._own_errors() as connection:
            if connection.execute(_IS_DUE, (self.now_us(), CLOCK_SLACK_US)).fetchone():
                self.expire()
            yield connection

    @contextlib.contextmanager
    def _changing(self) -> Iterator[Changing]:
        """Run one transaction, which takes the write lock before it reads, and first expires due leases."""
        with self._own_errors() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                change = Changing(connection, self._clock.now_us(), self._changes_max)
                change.end_due_leases()
                yield change
                change.finish()
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        if change.has_changed:
            with self._guard:
                watches = list(self._watches)
            for watch in watches:
                watch.wake()

    def _check_fence(self, change: Changing, key: str | None = None) -> None:
        """Check the fence before changing a key, or several; the fence's own key is exempt."""
        if self._fence is not None and self._fence[0] != key and change.value_of(self._fence[0]) != self._fence[1]:
            raise Fenced(self._fence[0])

    @contextlib.contextmanager
    def _own_errors(self) -> Iterator[sqlite3.Connection]:
        with self._guard:
            self._in_use += 1
        try:
            yield self._connection()
        except sqlite3.Error as error:
            raise self.problem(error) from error
        finally:
            with self._guard:
                self._in_use -= 1
                self._idle.notify_all()

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise Closed(f"the store {self._path}")
        found: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if found is None:
            found = self._own.connection = self.connect()
            with self._guard:
                self._all.append(found)
        return found


class SqliteWatch(Watch):
    """Reads the change log whenever the file has changed."""

    def __init__(self, store: SqliteStore, prefix: str, after_revision: int) -> None:
        super().__init__(prefix, after_revision)
        self._store = store
        self._wake = threading.Condition()
        self._woken = True
        self._closed = False
        self._reading = threading.Lock()
        self._connection = store.connect()
        self._version = -1
        self._lease_ends_us: int | None = None
        self._looked_us = store.now_us()

    def wake(self) -> None:
        with self._wake:
            self._woken = True
            self._wake.notify_all()

    def close(self) -> None:
        with self._wake:
            self._closed = True
            self._wake.notify_all()
        with self._reading:
            self._connection.close()
        self._store.forget(self)

    def _wait(self, timeout_ms: int | None) -> tuple[list[Change], int]:
        ends = None if timeout_ms is None else time.monotonic() + timeout_ms / 1_000
        while True:
            with self._reading:
                if self._closed:
                    raise Closed(f"the watch of {self._prefix}")
                try:
                    changes, position = self._look()
                except sqlite3.Error as error:
                    raise self._store.problem(error) from error
            left_s = POLL_S if ends is None else min(POLL_S, ends - time.monotonic())
            if changes or left_s <= 0:
                return changes, position
            self._position = position
            with self._wake:
                self._wake.wait_for(lambda: self._woken or self._closed, left_s)

    def _look(self) -> tuple[list[Change], int]:
        with self._wake:
            woken, self._woken = self._woken, False
        now_us = self._store.now_us()
        stepped_back = now_us < self._looked_us - CLOCK_SLACK_US
        self._looked_us = now_us
        if self._lease_ends_us is not None and (stepped_back or self._lease_ends_us <= now_us):
            self._store.expire()
        version = self._connection.execute("PRAGMA data_version").fetchone()[0]
        if version == self._version and not woken:
            return [], self._position
        self._version = version
        return self._read()

    def _read(self) -> tuple[list[Change], int]:
        self._connection.execute("BEGIN")
        try:
            newest, compacted = self._connection.execute("SELECT revision, compacted FROM newest").fetchone()
            self._lease_ends_us = self._connection.execute("SELECT min(ends_us) FROM leases").fetchone()[0]
            if self._position < compacted:
                raise RevisionCompacted(self._prefix, self._position)
            rows = self._connection.execute(_CHANGES, (self._prefix, self._position)).fetchall()
            return [Change(*row) for row in rows], max(newest, self._position)
        finally:
            self._connection.execute("ROLLBACK")

"""The embedded store: one SQLite file, durable with each call, shared by threads and processes.

Each thread has a connection of its own. WAL mode lets them read while one writes; `synchronous = FULL` syncs each
change before it is told.
"""

from __future__ import annotations

import contextlib
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

from frazil.core.errors import Closed, DiskFull, FrazilError, TryLater
from frazil.meta.store import Entry, check_key, check_value

LOCK_WAIT_S_MAX = 30.0

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS newest (only INTEGER PRIMARY KEY CHECK (only = 1), revision INTEGER NOT NULL);
INSERT OR IGNORE INTO newest VALUES (1, 0);
"""


class SqliteStore:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._guard = threading.Lock()
        self._own = threading.local()
        self._all: list[sqlite3.Connection] = []
        self._closed = False
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._told() as connection:
            connection.execute("PRAGMA journal_mode = WAL")
            connection.executescript(_TABLES)

    def get(self, key: str) -> Entry | None:
        check_key(key)
        with self._told() as connection:
            found = connection.execute("SELECT key, value, revision FROM entries WHERE key = ?", (key,)).fetchone()
        return None if found is None else Entry(*found)

    def put_if(self, key: str, value: bytes, revision: int) -> int | None:
        check_key(key)
        check_value(value)
        with self._changing(key, revision) as change:
            if change is None:
                return None
            connection, new = change
            connection.execute("INSERT OR REPLACE INTO entries VALUES (?, ?, ?)", (key, value, new))
            return new

    def delete(self, key: str, revision: int) -> bool:
        check_key(key)
        with self._changing(key, revision) as change:
            if change is None:
                return False
            connection, _ = change
            return connection.execute("DELETE FROM entries WHERE key = ?", (key,)).rowcount == 1

    def list(self, prefix: str) -> list[Entry]:
        check_key(prefix)
        query = (
            "SELECT key, value, revision FROM entries WHERE key >= ?1 AND substr(key, 1, length(?1)) = ?1 ORDER BY key"
        )
        with self._told() as connection:
            return [Entry(*row) for row in connection.execute(query, (prefix,))]

    def close(self) -> None:
        with self._guard:
            self._closed = True
            connections, self._all = self._all, []
        for connection in connections:
            connection.close()

    @contextlib.contextmanager
    def _changing(self, key: str, revision: int) -> Iterator[tuple[sqlite3.Connection, int] | None]:
        """One transaction, which takes the lock of writers before it looks; None if the key has another revision."""
        with self._told() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                found = connection.execute("SELECT revision FROM entries WHERE key = ?", (key,)).fetchone()
                if (0 if found is None else found[0]) != revision:
                    yield None
                else:
                    connection.execute("UPDATE newest SET revision = revision + 1")
                    yield connection, connection.execute("SELECT revision FROM newest").fetchone()[0]
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextlib.contextmanager
    def _told(self) -> Iterator[sqlite3.Connection]:
        try:
            yield self._connection()
        except sqlite3.Error as error:
            raise self._problem(error) from error

    def _connection(self) -> sqlite3.Connection:
        if self._closed:
            raise Closed(f"the store {self._path}")
        found: sqlite3.Connection | None = getattr(self._own, "connection", None)
        if found is None:
            found = sqlite3.connect(self._path, timeout=LOCK_WAIT_S_MAX, isolation_level=None, check_same_thread=False)
            found.execute("PRAGMA synchronous = FULL")
            self._own.connection = found
            with self._guard:
                self._all.append(found)
        return found

    def _problem(self, error: sqlite3.Error) -> FrazilError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if self._closed:
            return Closed(f"the store {self._path}")
        if code == sqlite3.SQLITE_FULL:
            return DiskFull(str(self._path), str(error))
        if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return TryLater(f"{self._path} is locked by another process; try again", path=str(self._path))
        return FrazilError(
            f"{self._path} cannot be used: {error}; put it back from a copy, or move it away", path=str(self._path)
        )

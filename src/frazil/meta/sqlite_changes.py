"""The tables of the embedded store: entries, the changes that produced them, and leases.

`changes` is the log that watches read: the newest `CHANGES_MAX` revisions, and at most about `CHANGES_BYTES_MAX`.
`newest.compacted` is the highest revision removed from it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping

from frazil.core.errors import NewerFormat
from frazil.meta.store import ABSENT, KeyAt

CHANGES_MAX = 10_000
CHANGES_BYTES_MAX = 16 * 1024 * 1024
CLOCK_SLACK_US = 1_000_000
"""A lease that ends this much later than its full duration from now predates a clock that was set back."""

_VERSION = 1
_TRIM_EVERY = 64
_LARGE_BYTES = 64 * 1024

_TABLES = """
CREATE TABLE IF NOT EXISTS entries (key TEXT PRIMARY KEY, value BLOB NOT NULL, revision INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS newest (only INTEGER PRIMARY KEY CHECK (only = 1), revision INTEGER NOT NULL);
INSERT OR IGNORE INTO newest VALUES (1, 0);
ALTER TABLE entries ADD COLUMN lease INTEGER;
ALTER TABLE newest ADD COLUMN compacted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE newest ADD COLUMN logged_bytes INTEGER NOT NULL DEFAULT 0;
UPDATE newest SET compacted = revision;
CREATE TABLE changes (
    revision INTEGER NOT NULL, key TEXT NOT NULL, logged_bytes INTEGER NOT NULL, value BLOB, PRIMARY KEY (revision, key)
) WITHOUT ROWID;
CREATE TABLE leases (id INTEGER PRIMARY KEY AUTOINCREMENT, ttl_ms INTEGER NOT NULL, ends_us INTEGER NOT NULL);
CREATE INDEX leases_by_end ON leases (ends_us);
CREATE INDEX entries_by_lease ON entries (lease) WHERE lease IS NOT NULL;
"""
"""A file of version 0 has only the first three."""


_SHORTEN = """
UPDATE leases SET ends_us = ?1 + ttl_ms * 1000 WHERE ends_us > ?1 + ttl_ms * 1000 + ?2
"""


def after_prefix(prefix: str) -> str:
    """Return the least string above all strings with `prefix`, in SQLite's order, which is by code point."""
    kept = prefix.rstrip("\U0010ffff")
    following = ord(kept[-1]) + 1
    return kept[:-1] + chr(0xE000 if following == 0xD800 else following)


def prepare(connection: sqlite3.Connection, path: str) -> None:
    """Create the tables, or migrate those of an older version."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        if version > _VERSION:
            raise NewerFormat(path, version, _VERSION)
        if version < _VERSION:
            for statement in _TABLES.split(";"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


class Changing:
    """The operations within one transaction. All keys put or deleted in it have one revision."""

    def __init__(self, connection: sqlite3.Connection, now_us: int, changes_max: int) -> None:
        self._connection = connection
        self._now_us = now_us
        self._changes_max = changes_max
        row = connection.execute("SELECT revision, compacted, logged_bytes FROM newest").fetchone()
        self._revision: int = row[0]
        self._compacted: int = row[1]
        self._logged_bytes: int = row[2]
        self._before: int = self._revision
        self._has_large = False

    @property
    def has_changed(self) -> bool:
        return self._revision > self._before

    def revision_of(self, key: str) -> int:
        found = self._connection.execute("SELECT revision FROM entries WHERE key = ?", (key,)).fetchone()
        return ABSENT if found is None else found[0]

    def holds(self, condition: KeyAt | None) -> bool:
        return condition is None or self.revision_of(condition.key) == condition.revision

    def value_of(self, key: str) -> bytes | None:
        found = self._connection.execute("SELECT value FROM entries WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def put(self, values: Mapping[str, bytes], lease_id: int | None = None) -> int:
        self._revision += 1
        rows = [(key, value, self._revision, lease_id) for key, value in values.items()]
        self._connection.executemany(
            "INSERT OR REPLACE INTO entries (key, value, revision, lease) VALUES (?, ?, ?, ?)", rows
        )
        for key, value in values.items():
            self._log(key, value)
        return self._revision

    def delete_all(self, keys: Collection[str], below: Collection[str]) -> None:
        """Delete the keys, and all keys with a prefix in `below`, if they exist."""
        query = "SELECT key FROM entries WHERE key >= ? AND key < ?"
        found = {key for key in keys if self.revision_of(key) != ABSENT}
        for prefix in below:
            found |= {key for (key,) in self._connection.execute(query, (prefix, after_prefix(prefix)))}
        if found:
            self.delete(sorted(found))

    def delete(self, keys: Collection[str]) -> None:
        self._revision += 1
        for key in keys:
            self._connection.execute("DELETE FROM entries WHERE key = ?", (key,))
            self._log(key, None)

    def grant(self, ttl_ms: int) -> int:
        row = (ttl_ms, self._now_us + ttl_ms * 1_000)
        given = self._connection.execute("INSERT INTO leases (ttl_ms, ends_us) VALUES (?, ?)", row).lastrowid
        assert given is not None
        return given

    def has_lease(self, lease_id: int) -> bool:
        return self._connection.execute("SELECT 1 FROM leases WHERE id = ?", (lease_id,)).fetchone() is not None

    def prolong(self, lease_id: int) -> bool:
        query = "UPDATE leases SET ends_us = ? + ttl_ms * 1000 WHERE id = ?"
        return self._connection.execute(query, (self._now_us, lease_id)).rowcount == 1

    def end_lease(self, lease_id: int) -> None:
        held = self._connection.execute("SELECT key FROM entries WHERE lease = ? ORDER BY key", (lease_id,)).fetchall()
        self._connection.execute("DELETE FROM leases WHERE id = ?", (lease_id,))
        if held:
            self.delete([key for (key,) in held])

    def end_due_leases(self) -> None:
        """Expire due leases, and shorten those that would outlast their duration because the clock was set back."""
        self._connection.execute(_SHORTEN, (self._now_us, CLOCK_SLACK_US))
        due = "SELECT id FROM leases WHERE ends_us <= ? ORDER BY ends_us, id"
        for (lease_id,) in self._connection.execute(due, (self._now_us,)).fetchall():
            self.end_lease(lease_id)

    def finish(self) -> None:
        if not self.has_changed:
            return
        if self._has_large or self._revision // _TRIM_EVERY > self._before // _TRIM_EVERY:
            self._trim()
        row = (self._revision, self._compacted, self._logged_bytes)
        self._connection.execute("UPDATE newest SET revision = ?, compacted = ?, logged_bytes = ?", row)

    def _log(self, key: str, value: bytes | None) -> None:
        size_bytes = len(key) + len(value or b"")
        self._has_large |= size_bytes >= _LARGE_BYTES
        self._logged_bytes += size_bytes
        row = (self._revision, key, self._logged_bytes, value)
        self._connection.execute("INSERT INTO changes (revision, key, logged_bytes, value) VALUES (?, ?, ?, ?)", row)

    def _trim(self) -> None:
        query = "SELECT max(revision) FROM changes WHERE logged_bytes <= ?"
        found = self._connection.execute(query, (self._logged_bytes - CHANGES_BYTES_MAX,)).fetchone()[0]
        cut = max(found or 0, self._revision - self._changes_max)
        if cut > self._compacted:
            self._connection.execute("DELETE FROM changes WHERE revision <= ?", (cut,))
            self._compacted = cut

"""Manifests and manifest lists of removed snapshots, deleted once no reader can be planning with them.

They are kept for an hour after their snapshot was removed: another engine may have loaded the table before. The list is
lost with the process; then the files are left for the orphan clean-up, like those of a crash.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.io import FileIO
from pyiceberg.manifest import read_manifest_list
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from frazil.lake.catalogs.error_text import reason
from frazil.lake.commit.snapshot_expiry import may_remove
from frazil.lake.files.manifests import check_listed
from frazil.lake.tables.schema import TableName

READERS_MS = 3_600_000
SWEEP_COUNT = 100
"""A sweep reads all manifest lists of the table, so it waits until the files of this many snapshots are due."""
NOTED_MAX = 50_000
READS_AT_ONCE = 4

_log = logging.getLogger("frazil.lake")


@dataclass(frozen=True, slots=True)
class _Expired:
    snapshot_id: int
    manifest_list: str
    removed_ms: int


class ExpiredFiles:
    """The expired snapshots of one table."""

    def __init__(self, table: Table) -> None:
        self._table_uuid = table.metadata.table_uuid
        self._guard = threading.Lock()
        self._noted: deque[_Expired] = deque(maxlen=NOTED_MAX)
        self._sweeping = False

    def is_of(self, table: Table) -> bool:
        return table.metadata.table_uuid == self._table_uuid

    def note(self, snapshots: Sequence[Snapshot], removed_ms: int) -> None:
        with self._guard:
            self._noted.extend(_Expired(each.snapshot_id, each.manifest_list, removed_ms) for each in snapshots)

    def claim_sweep(self, now_ms: int) -> bool:
        """Whether enough is due and no sweep runs; if True, the caller must call `sweep`."""
        with self._guard:
            is_due = len(self._noted) >= SWEEP_COUNT and self._noted[SWEEP_COUNT - 1].removed_ms + READERS_MS <= now_ms
            if self._sweeping or not is_due:
                return False
            self._sweeping = True
            return True

    def sweep(self, load: Callable[[], Table], now_ms: int) -> None:
        """Delete the due files that no current snapshot of the table uses."""
        try:
            due, next_one = self._take(now_ms)
            if due:
                table = load()
                if self.is_of(table) and may_remove(table.metadata):
                    _delete_unused(table, due, next_one)
        finally:
            with self._guard:
                self._sweeping = False

    def _take(self, now_ms: int) -> tuple[list[_Expired], _Expired | None]:
        with self._guard:
            due: list[_Expired] = []
            while self._noted and len(due) < SWEEP_COUNT and self._noted[0].removed_ms + READERS_MS <= now_ms:
                due.append(self._noted.popleft())
            return due, self._noted[0] if self._noted else None


class Sweeper:
    """Sweeps tables one after another in its own thread, so that no commit waits for it."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="frazil-expired-files")

    def sweep(self, name: TableName, files: ExpiredFiles, now_ms: int) -> None:
        self._pool.submit(self._sweep, name, files, now_ms)

    def _sweep(self, name: TableName, files: ExpiredFiles, now_ms: int) -> None:
        try:
            files.sweep(lambda: self._catalog.load_table(name.identifier), now_ms)
        except NoSuchTableError:
            _log.info("%s is gone: files of its expired snapshots are not removed", name)
        except Exception as error:  # noqa: BLE001 - the files are left for the orphan clean-up, whatever went wrong
            why = reason(error, self._catalog.properties)
            _log.warning("%s: files of expired snapshots were left for the orphan clean-up: %s", name, why)


def _delete_unused(table: Table, due: Sequence[_Expired], next_one: _Expired | None) -> None:
    """The first snapshot that is not due represents all later ones: an append takes no manifest back."""
    there = {snapshot.snapshot_id for snapshot in table.snapshots()}
    gone = [one for one in due if one.snapshot_id not in there]
    snapshots = table.snapshots()
    kept = {snapshot.manifest_list for snapshot in snapshots}
    with ThreadPoolExecutor(READS_AT_ONCE) as pool:
        used = _union(pool.map(lambda one: _used(table.io, one), snapshots))
        if next_one is not None:
            used |= _manifests(table.io, next_one.manifest_list)
        listed = _union(pool.map(lambda one: _manifests_if_there(table.io, one.manifest_list), gone))
        paths = [*sorted(listed - used), *(one.manifest_list for one in gone if one.manifest_list not in kept)]
        failed = [error for error in pool.map(lambda path: _deleted(table.io, path), paths) if error is not None]
    if failed:
        why = reason(failed[0], table.io.properties)
        _log.warning("%s: %d files of expired snapshots are left: %s", ".".join(table.name()), len(failed), why)


def _used(io: FileIO, snapshot: Snapshot) -> set[str]:
    found = _manifests(io, snapshot.manifest_list)
    check_listed(snapshot, len(found))
    return found


def _manifests(io: FileIO, manifest_list: str) -> set[str]:
    """Bypass PyIceberg's cache, which is for manifests that are read soon."""
    return {manifest.manifest_path for manifest in read_manifest_list(io.new_input(manifest_list))}


def _manifests_if_there(io: FileIO, manifest_list: str) -> set[str]:
    """Return None for a list that another clean-up has already deleted, together with its manifests."""
    try:
        return _manifests(io, manifest_list)
    except FileNotFoundError:
        return set()


def _deleted(io: FileIO, path: str) -> OSError | None:
    try:
        io.delete(path)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _union(sets: Iterable[set[str]]) -> set[str]:
    return set().union(*sets)

"""One round over the tables: what is due to each, and the doing of it. For a timer, or for the mover's own.

Spark is started only if something is due. One table's trouble is told, and does not keep the others from it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from frazil.core.errors import FrazilError
from frazil.lake.tables import TableName
from frazil.lake.upkeep import Upkeep
from frazil.pipeline.maintenance import Maintenance


@dataclass(frozen=True, slots=True)
class Due:
    """What is to be done to a table: small files to join, snapshots to forget, stray files to look for."""

    name: TableName
    files: int = 0
    snapshots: int = 0
    orphans: bool = False
    error: str | None = None

    def __bool__(self) -> bool:
        return bool(self.files or self.snapshots or self.orphans)

    def as_dict(self) -> dict[str, Any]:
        return {
            "table": str(self.name),
            "files": self.files,
            "snapshots": self.snapshots,
            "orphans": self.orphans,
            "error": self.error,
        }


@dataclass(slots=True)
class Kept:
    """What was done to a table."""

    table: str
    files_before: int = 0
    files_after: int = 0
    snapshots_removed: int = 0
    orphans_removed: int = 0
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Round:
    def __init__(self, upkeep: Upkeep, now_ms: int, orphans_before_ms: int | None, snapshots_min: int) -> None:
        """Without `orphans_before_ms` stray files are left for another time."""
        self._upkeep = upkeep
        self._now_ms = now_ms
        self._orphans_before_ms = orphans_before_ms
        self._keep = snapshots_min

    def due(self, name: TableName) -> Due:
        try:
            files = self._upkeep.compaction(name).files
            if not self._upkeep.may_delete(name):
                return Due(name, files)
            expiring = self._upkeep.expiring(name, self._before_ms(name), self._keep)
            return Due(name, files, len(expiring), self._orphans_before_ms is not None)
        except FrazilError as error:
            return Due(name, error=error.message)

    def keep(self, maintenance: Maintenance, due: Due) -> Kept:
        """Each step is tried, whatever became of the one before; the first error is told."""
        done = Kept(str(due.name), error=due.error)
        for is_due, step in ((due.files, self._compact), (due.snapshots, self._expire), (due.orphans, self._orphans)):
            if is_due:
                try:
                    step(maintenance, due.name, done)
                except FrazilError as error:
                    done.error = done.error or error.message
        return done

    def _compact(self, maintenance: Maintenance, name: TableName, done: Kept) -> None:
        found = maintenance.compact(name)
        done.files_before, done.files_after = found.files_before, found.files_after

    def _expire(self, maintenance: Maintenance, name: TableName, done: Kept) -> None:
        done.snapshots_removed = maintenance.expire(name, self._before_ms(name), self._keep).snapshots

    def _orphans(self, maintenance: Maintenance, name: TableName, done: Kept) -> None:
        assert self._orphans_before_ms is not None
        done.orphans_removed = len(maintenance.orphans(name, self._orphans_before_ms, dry_run=False).files)

    def _before_ms(self, name: TableName) -> int:
        return self._upkeep.expires_before_ms(name, self._now_ms)

"""One maintenance pass over the tables: what is due for each, and its execution. Run by a timer or by the mover.

Spark is started only if something is due. An error of one table is reported, and does not stop the others.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from frazil.core.errors import FrazilError
from frazil.lake.maintenance.table_inspection import TableInspector
from frazil.lake.tables.schema import TableName
from frazil.pipeline.maintenance.procedures import Maintenance


@dataclass(frozen=True, slots=True)
class Due:
    """What is due for a table: small files to merge, snapshots to expire, orphan files to remove."""

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
    def __init__(
        self, inspector: TableInspector, now_ms: int, orphans_before_ms: int | None, snapshots_min: int
    ) -> None:
        """Without `orphans_before_ms` orphan files are not removed in this pass."""
        self._inspector = inspector
        self._now_ms = now_ms
        self._orphans_before_ms = orphans_before_ms
        self._keep = snapshots_min

    def due(self, name: TableName) -> Due:
        try:
            files = self._inspector.compaction(name).files
            if not self._inspector.may_delete(name):
                return Due(name, files)
            expiring = self._inspector.expiring(name, self._before_ms(name), self._keep)
            return Due(name, files, len(expiring), self._orphans_before_ms is not None)
        except FrazilError as error:
            return Due(name, error=error.message)

    def keep(self, maintenance: Maintenance, due: Due) -> Kept:
        """Try each step, even if an earlier one failed; the first error is reported."""
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
        return self._inspector.expires_before_ms(name, self._now_ms)

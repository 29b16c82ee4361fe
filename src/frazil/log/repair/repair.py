"""Repair one topic, on explicit request only. Nothing is deleted: removed bytes are kept in files next to the log.

The log then continues at the recovered end, so the offsets of removed rows are assigned to other rows. Clients that
remember offsets of this topic at or above the recovered end must discard them: the log cannot know.

The order leaves a repairable state after a crash at any point: first `topic.json`, while all schema frames still exist;
then bytes are copied and synced before they are cut, and segments after the bad byte are renamed from the newest down;
`~ends`, which proves the loss, is lowered last.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.core.disk import Disk, LocalDisk
from frazil.core.errors import TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import MIB, Settings
from frazil.log.folder.ownership import owned
from frazil.log.format.records import write_record
from frazil.log.repair.check import CheckReport, check
from frazil.log.repair.plan import Cut, MoveAside, RepairPlan, Seal, StartAnew, Step, WriteRecord, plan_repair
from frazil.log.repair.renumbering import finish_renumbering
from frazil.log.write.disk_budget import DiskBudget
from frazil.log.write.segment import Segment, SegmentWriter

_COPY_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was done, or would be in a dry run, and the topic's state now; `after` is None if it is gone."""

    plan: RepairPlan
    dry_run: bool
    after: CheckReport | None

    def as_dict(self) -> dict[str, Any]:
        after = self.after.as_dict() if self.after else None
        return {**self.plan.as_dict(), "dry_run": self.dry_run, "after": after}


def repair(settings: Settings, topic: str, *, dry_run: bool = False, disk: Disk | None = None) -> Repaired:
    """Cut the topic's log at its first bad byte; raises `FolderInUse` while another process owns the folder.

    A decided renumbering is executed first, as by every owner of the folder, even in a dry run.
    """
    name = TopicName.parse(topic)
    disk = disk or LocalDisk()
    folder = settings.log_folder
    try:
        disk.list(folder)
    except FileNotFoundError:
        raise TopicNotFound(topic) from None
    with owned(disk, settings):
        finish_renumbering(disk, folder)
        plan = plan_repair(disk, folder, name, settings.wal.sync_mode)
        if not dry_run:
            for step in plan.steps:
                execute_step(disk, step)
        return Repaired(plan, dry_run, _report(disk, folder, name))


def _report(disk: Disk, folder: Path, name: TopicName) -> CheckReport | None:
    try:
        return next((report for report in check(disk, folder, [name]) if report.topic == str(name)), None)
    except TopicNotFound:
        return None


def execute_step(disk: Disk, step: Step) -> None:
    """Execute one step, durable on return."""
    match step:
        case MoveAside():
            disk.rename(step.path, step.kept_as)
            disk.sync_folder(step.path.parent)
        case Cut():
            _copy(disk, step.path, step.position, step.kept_as)
            _truncate(disk, step.path, step.position)
        case Seal():
            _seal(disk, step)
        case StartAnew():
            _copy(disk, step.segment.path, 0, step.kept_as)
            path, base = step.segment.path, step.segment.base
            SegmentWriter.create(disk, DiskBudget(None), path.parent, base, step.head, 0).park()
        case WriteRecord():
            if step.kept_as is not None:
                _copy(disk, step.path, 0, step.kept_as)
            write_record(disk, step.path, dict(step.content))


def _copy(disk: Disk, source: Path, position: int, target: Path) -> None:
    """Copy the bytes of a file from `position` on to another file, durably."""
    reading, writing = disk.open(source, "read"), disk.open(target, "create")
    try:
        written = 0
        while data := reading.read(_COPY_BYTES, position + written):
            writing.write([data], written)
            written += len(data)
        writing.sync()
    finally:
        reading.close()
        writing.close()
    disk.sync_folder(target.parent)


def _truncate(disk: Disk, path: Path, size: int) -> None:
    file = disk.open(path, "write")
    try:
        file.truncate(size)
        file.sync()
    finally:
        file.close()


def _seal(disk: Disk, step: Seal) -> None:
    """Keep the bytes where the mark belongs, then let the writer seal the segment as usual."""
    size = step.segment.used_bytes
    if step.position < size:
        _copy(disk, step.segment.path, step.position, step.kept_as)
    segment = Segment(step.segment.base, step.segment.path, step.position, size, sealed=False)
    SegmentWriter(disk, DiskBudget(None), segment, step.head, size).seal(step.end)

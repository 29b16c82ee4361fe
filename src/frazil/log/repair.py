"""Make one topic whole again, on an explicit order only. Nothing is deleted: what leaves the log is kept beside it.

The log then goes on at the recovered end, so the offsets of rows that were cut off are given out again, to other
rows. Whoever remembers offsets of this topic at or above the recovered end must forget them: the log cannot know.

Order, so that a crash at any point leaves something that can be repaired again: first `topic.json`, while all
schema frames are still there; then bytes are copied and synced before they are cut, and segments behind the bad
byte are renamed from the newest down; `~ends`, which proves the loss, is lowered last.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.core.disk import Disk, LocalDisk
from frazil.core.errors import TopicNotFound
from frazil.core.names import TopicName
from frazil.core.settings import MIB, Settings
from frazil.log.budget import DiskBudget
from frazil.log.check import TopicReport, check
from frazil.log.ownership import owned
from frazil.log.records import write_record
from frazil.log.renumbering import finish_renumbering
from frazil.log.repair_plan import Cut, RepairPlan, Seal, SetAside, StartAnew, Step, WriteRecord, plan_repair
from frazil.log.segment import Segment, SegmentWriter

_COPY_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class Repaired:
    """What was done, or in a dry run would be, and how the topic stands now; `after` is None if it is gone."""

    plan: RepairPlan
    dry_run: bool
    after: TopicReport | None

    def as_dict(self) -> dict[str, Any]:
        after = self.after.as_dict() if self.after else None
        return {**self.plan.as_dict(), "dry_run": self.dry_run, "after": after}


def repair(settings: Settings, topic: str, *, dry_run: bool = False, disk: Disk | None = None) -> Repaired:
    """Cut the topic's log at its first bad byte; `FolderInUse` while another process owns the folder.

    A renumbering that was decided is carried out first, as by every owner of the folder, also in a dry run.
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
                carry_out(disk, step)
        return Repaired(plan, dry_run, _report(disk, folder, name))


def _report(disk: Disk, folder: Path, name: TopicName) -> TopicReport | None:
    try:
        return next((report for report in check(disk, folder, [name]) if report.topic == str(name)), None)
    except TopicNotFound:
        return None


def carry_out(disk: Disk, step: Step) -> None:
    """One step, durable when it returns."""
    match step:
        case SetAside():
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
    """The bytes of a file from `position` on, under another name, durably."""
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
    """Keep what stands where the mark belongs, then let the writer close the segment as it always does."""
    size = step.segment.used_bytes
    if step.position < size:
        _copy(disk, step.segment.path, step.position, step.kept_as)
    segment = Segment(step.segment.base, step.segment.path, step.position, size, sealed=False)
    SegmentWriter(disk, DiskBudget(None), segment, step.head, size).seal(step.end)

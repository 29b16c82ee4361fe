"""Plan the repair of one topic without changing a byte; `repair` executes the plan.

A log must be continuous, so everything from the first bad byte on is set aside: the rest of that segment, and all later
segments, good or not. Only if nothing but a closing mark is wrong, the mark is rewritten and no row is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.rows import ENVELOPE, stored_schema
from frazil.core.settings import SyncMode
from frazil.log.folder.catalog import TopicRecord, read_topic_record
from frazil.log.folder.layout import ENDS_FILE, TOPIC_FILE, topic_folder
from frazil.log.format.frames import SegmentHead, find_frames, unpack_batch
from frazil.log.format.records import open_to_read
from frazil.log.read.segment_reader import SegmentReader
from frazil.log.repair.check import CUT_SUFFIX, first_log_id, read_ends
from frazil.log.repair.examine import Examined, Flaw, examine_segments
from frazil.log.repair.recovery import check_beginning, list_segments, unused_name
from frazil.log.repair.survey import SegmentFrames
from frazil.log.write.producers import above_unseen, next_generation
from frazil.log.write.segment import Segment


@dataclass(frozen=True, slots=True)
class MoveAside:
    """Rename a whole file, so that it is no longer a segment."""

    path: Path
    kept_as: Path

    def __str__(self) -> str:
        return f"set aside {self.path.name} as {self.kept_as.name}"


@dataclass(frozen=True, slots=True)
class Cut:
    """Copy a file's bytes from `position` on into `kept_as`, then truncate it."""

    path: Path
    position: int
    kept_as: Path

    def __str__(self) -> str:
        return f"cut {self.path.name} at byte {self.position}; the rest is kept as {self.kept_as.name}"


@dataclass(frozen=True, slots=True)
class Seal:
    """Write the closing mark of a segment whose rows are complete."""

    segment: Segment
    head: SegmentHead
    position: int
    end: int
    kept_as: Path

    def __str__(self) -> str:
        return f"write the closing mark of {self.segment.path.name} at byte {self.position} again; no row is lost"


@dataclass(frozen=True, slots=True)
class StartAnew:
    """Replace an unreadable first segment by an empty one at the same offset."""

    segment: Segment
    head: SegmentHead
    kept_as: Path

    def __str__(self) -> str:
        return f"keep {self.segment.path.name} as {self.kept_as.name} and put an empty segment in its place"


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Rewrite `topic.json` or `~ends`; the old file is copied to `kept_as` first."""

    path: Path
    content: Mapping[str, Any]
    kept_as: Path | None
    why: str

    def __str__(self) -> str:
        kept = f"; the old one is kept as {self.kept_as.name}" if self.kept_as else ""
        return f"rewrite {self.path.name} ({self.why}){kept}"


Step = MoveAside | Cut | Seal | StartAnew | WriteRecord


@dataclass(slots=True)
class RepairPlan:
    """`rows_cut` counts valid rows after the first bad byte: kept in the files set aside, but no longer in the log."""

    topic: str
    flaws: list[Flaw] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    end: int = 0
    end_known: int = 0
    rows_cut: int = 0
    log_id: str = ""

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "flaws": [flaw.as_dict() for flaw in self.flaws],
            "steps": [str(step) for step in self.steps],
            "end": self.end,
            "end_known": self.end_known,
            "rows_cut": self.rows_cut,
        }


def plan_repair(disk: Disk, folder: Path, name: TopicName, sync_mode: SyncMode) -> RepairPlan:
    """Return the repair steps, ordered so that a crash after any of them leaves a repairable state."""
    return _Planner(disk, folder, name, sync_mode).plan()


class _Planner:
    def __init__(self, disk: Disk, folder: Path, name: TopicName, sync_mode: SyncMode) -> None:
        self._disk = disk
        self._folder = folder
        self._name = name
        self._place = topic_folder(folder, name)
        self._sync_mode = sync_mode
        self._plan = RepairPlan(str(name))

    def plan(self) -> RepairPlan:
        plan = self._plan
        ends, ends_flaw = read_ends(self._disk, self._folder)
        _refuse_newer(ends_flaw)
        try:
            segments = list_segments(self._disk, self._place)
        except FileNotFoundError:
            segments = []
        record, record_flaw = self._read_record()
        _refuse_newer(record_flaw)
        if record is None and not segments:
            self._plan_lost(ends)
            return plan
        log_id = record.log_id if record else first_log_id(self._disk, segments)
        if log_id is None:
            raise CorruptLog(str(self._place), 0, "no schema frame is readable to rebuild topic.json; move it away")
        plan.log_id = log_id
        stored = stored_schema(record.schema) if record else None
        found = self._examined(segments, log_id, stored)
        _refuse_newer(*(one.flaw for one in found))
        if record is None:
            record = self._rebuilt(log_id, segments, found)
            kept_as = self._aside(self._place / TOPIC_FILE) if self._has(self._place / TOPIC_FILE) else None
            plan.steps.append(WriteRecord(self._place / TOPIC_FILE, record.as_content(), kept_as, "rebuilt"))
        self._plan_beginning(segments, record)
        plan.end_known = ends[log_id]["end"] if log_id in ends else 0
        self._plan_segments(segments, found, record)
        plan.flaws += [flaw for flaw in (record_flaw, ends_flaw) if flaw]
        self._plan_ends(ends, ends_flaw, log_id)
        return plan

    def _examined(self, segments: Sequence[Segment], log_id: str, stored: pa.Schema | None) -> list[Examined]:
        """Examine the segments. An unreadable disk is no reason to cut rows that may be good."""
        try:
            return list(
                examine_segments(
                    self._disk, self._name, segments, log_id, stored, past_bad_seals=True, unreadable_is_a_flaw=False
                )
            )
        except OSError as error:
            why = (
                f"a segment cannot be read ({error.strerror or error}), so nothing was changed; repair again once the "
                "disk answers, or once a copy of what can be read has taken the file's place"
            )
            raise CorruptLog(error.filename or str(self._place), 0, why) from error

    def _plan_beginning(self, segments: Sequence[Segment], record: TopicRecord) -> None:
        """Lost leading segments cannot be recovered: the log begins with its first file."""
        try:
            check_beginning(self._place, segments, record.first_offset)
        except CorruptLog as error:
            self._plan.flaws.append(Flaw.of(error))
            moved = record.with_first_offset(segments[0].base if segments else 0)
            why = f"it now begins at offset {moved.first_offset}"
            self._plan.steps.append(WriteRecord(self._place / TOPIC_FILE, moved.as_content(), None, why))

    def _read_record(self) -> tuple[TopicRecord | None, Flaw | None]:
        try:
            return read_topic_record(self._disk, self._folder, self._name), None
        except CorruptLog as error:
            return None, Flaw.of(error)

    def _rebuilt(self, log_id: str, segments: Sequence[Segment], found: Sequence[Examined]) -> TopicRecord:
        """Rebuild the record from the newest schema frame. The retention is stored nowhere else: the default applies
        again.

        Neither are epochs of names that were taken but have not written since. So each gets one above all that it may
        have had, and its clients must reopen the name.
        """
        heads = [head for head in map(self._head, segments) if head is not None and head.log_id == log_id]
        newest = heads[-1]
        if newest.topic != str(self._name):
            raise CorruptLog(str(self._place), 0, f"these segments belong to {newest.topic}; move the folder back")
        own = None if newest.schema.equals(ENVELOPE) else pa.schema(list(newest.schema)[1:])
        seen, floor = self._epochs(segments)
        epochs = {name: above_unseen(epoch) for name, epoch in seen.items()}
        floor = next_generation(max([floor, *epochs.values()]))
        created_us = found[0].segment.first_time_us or 0
        last_time_us = max(one.last_time_us for one in found)
        return TopicRecord(
            self._name, log_id, created_us, own, None, segments[0].base, epochs, floor, last_time_us=last_time_us
        )

    def _epochs(self, segments: Sequence[Segment]) -> tuple[dict[str, int], int]:
        """Return the highest epochs in all readable frames, including those set aside; and the highest floor."""
        epochs: dict[str, int] = {}
        floor = 0
        for segment in segments:
            try:
                frames = SegmentFrames(self._disk, segment.path)
            except (CorruptLog, OSError):
                continue
            try:
                floor = max(floor, frames.producers.floor)
                seen = list(frames.producers.epochs().items())
                for frame in frames:
                    seen += [(one.sent.producer, one.sent.epoch) for one in frame.sent]
            except (CorruptLog, OSError):
                pass  # the plan reports it
            finally:
                frames.close()
            for name, epoch in seen:
                epochs[name] = max(epoch, epochs.get(name, 0))
        return epochs, floor

    def _head(self, segment: Segment) -> SegmentHead | None:
        try:
            reader = SegmentReader(self._disk, segment)
        except (CorruptLog, OSError):
            return None
        reader.close()
        return reader.head

    def _plan_lost(self, ends: Mapping[str, Any]) -> None:
        """Plan for a missing folder: only `~ends` is left to correct."""
        lost = [known["end"] for known in ends.values() if known["topic"] == str(self._name)]
        if not lost:
            raise TopicNotFound(str(self._name))
        self._plan.end_known = max(lost)
        self._plan.flaws.append(Flaw(str(self._place), 0, f"the files are gone; there were {max(lost)} offsets"))
        self._plan_ends(ends, None, "")

    def _plan_segments(self, segments: Sequence[Segment], found: Sequence[Examined], record: TopicRecord) -> None:
        plan = self._plan
        for one in found:
            if one.flaw is not None:
                plan.flaws.append(one.flaw)
            if one.flaw is not None and one.seal_only:
                assert one.head is not None
                kept_as = self._aside(one.segment.path, one.end_position)
                plan.steps.append(Seal(one.segment, one.head, one.end_position, one.end, kept_as))
        last = found[-1] if found else None
        plan.end = last.end if last else 0
        if last is not None and last.flaw is not None and not last.seal_only:
            self._plan_cut(segments, last, record)
        elif plan.end < plan.end_known:
            where = str(last.segment.path if last else self._place)
            why = f"the log ends at offset {plan.end}, but offsets up to {plan.end_known} were acknowledged"
            plan.flaws.append(Flaw(where, last.end_position if last else 0, why))
            if last is not None and last.torn is not None:
                self._plan_cut(segments, last, record)

    def _plan_cut(self, segments: Sequence[Segment], bad: Examined, record: TopicRecord) -> None:
        plan, at = self._plan, segments.index(bad.segment)
        schema = bad.head.schema if bad.head else stored_schema(record.schema)
        plan.rows_cut += self._rows_behind(bad, schema)
        for segment in reversed(segments[at + 1 :]):
            plan.rows_cut += self._rows_of(segment)
            plan.steps.append(MoveAside(segment.path, self._aside(segment.path)))
        path = bad.segment.path
        if bad.end_position > 0:
            if bad.end_position < bad.segment.used_bytes:
                plan.steps.append(Cut(path, bad.end_position, self._aside(path, bad.end_position)))
        elif at > 0:
            plan.steps.append(MoveAside(path, self._aside(path)))
        else:
            head = SegmentHead(record.log_id, str(self._name), self._sync_mode, stored_schema(record.schema))
            plan.steps.append(StartAnew(bad.segment, head, self._aside(path)))

    def _plan_ends(self, ends: Mapping[str, Any], flaw: Flaw | None, log_id: str) -> None:
        """The last step: until the log is repaired, `~ends` must keep the evidence of the loss."""
        plan, name = self._plan, str(self._name)
        content = {key: known for key, known in ends.items() if known["topic"] != name}
        if log_id in ends:
            content[log_id] = {"topic": name, "end": min(plan.end, plan.end_known)}
        if flaw is not None or content != ends:
            path = self._folder / ENDS_FILE
            why = "it was not readable" if flaw else f"{name} now ends at offset {plan.end}"
            plan.steps.append(WriteRecord(path, content, self._aside(path) if flaw else None, why))

    def _rows_behind(self, bad: Examined, schema: pa.Schema) -> int:
        """Count valid rows in the same file after its first bad byte; frames nested in other frames are not counted."""
        try:
            file = open_to_read(self._disk, bad.segment.path)
        except OSError:
            return 0
        try:
            rest = memoryview(file.read(file.size() - bad.end_position, bad.end_position))
        except OSError:
            return 0
        finally:
            file.close()
        rows, free_from = 0, 0
        for frame in find_frames(rest, 0, bad.end_position, bad.end):
            if frame.position >= free_from and not frame.is_mark:
                try:
                    rows += unpack_batch(str(bad.segment.path), frame, schema).num_rows
                    free_from = frame.end_position
                except CorruptLog:
                    continue
        return rows

    def _rows_of(self, segment: Segment) -> int:
        try:
            reader = SegmentReader(self._disk, segment)
        except (CorruptLog, OSError):
            return 0
        rows = 0
        try:
            for batch in reader:
                rows += batch.rows.num_rows
        except (CorruptLog, OSError):
            pass
        finally:
            reader.close()
        return rows

    def _has(self, path: Path) -> bool:
        return any(entry.name == path.name for entry in self._disk.list(path.parent))

    def _aside(self, path: Path, position: int | None = None) -> Path:
        """Return an unused name next to a file, for a part or the whole of it."""
        if position is not None:
            return unused_name(self._disk, path, position, CUT_SUFFIX)
        taken = {entry.name for entry in self._disk.list(path.parent)}
        names = (f"{path.name}{f'.{count}' if count else ''}{CUT_SUFFIX}" for count in range(len(taken) + 1))
        return path.parent / next(name for name in names if name not in taken)


def _refuse_newer(*flaws: Flaw | None) -> None:
    """What a newer version wrote is not damaged: a repair would cut off good rows."""
    for flaw in flaws:
        if flaw is not None and flaw.newer is not None:
            raise flaw.newer

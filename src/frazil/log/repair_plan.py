"""What a repair would do to one topic, decided without touching a byte; `repair` carries it out.

A log must be continuous, so everything from the first bad byte on goes aside: the rest of that segment, and all
segments behind it, good or not. Only where nothing but a closing mark is wrong is it written anew and no row lost.
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
from frazil.log.catalog import TopicRecord, read_topic_record
from frazil.log.check import CUT_SUFFIX, first_log_id, read_ends
from frazil.log.examine import Examined, Flaw, examine_segments
from frazil.log.folder import ENDS_FILE, TOPIC_FILE, topic_folder
from frazil.log.format import SegmentHead, find_frames, unpack_batch
from frazil.log.producers import above_unseen, next_generation
from frazil.log.records import open_to_read
from frazil.log.recovery import check_beginning, list_segments, unused_name
from frazil.log.segment import Segment
from frazil.log.segment_reader import SegmentReader
from frazil.log.survey import SegmentFrames


@dataclass(frozen=True, slots=True)
class SetAside:
    """Rename a whole file, so that it is no segment any more."""

    path: Path
    kept_as: Path

    def __str__(self) -> str:
        return f"set aside {self.path.name} as {self.kept_as.name}"


@dataclass(frozen=True, slots=True)
class Cut:
    """Copy a file's bytes from `position` on into `kept_as`, then cut them off."""

    path: Path
    position: int
    kept_as: Path

    def __str__(self) -> str:
        return f"cut {self.path.name} at byte {self.position}; the rest is kept as {self.kept_as.name}"


@dataclass(frozen=True, slots=True)
class Seal:
    """Write the closing mark of a segment whose rows are all there."""

    segment: Segment
    head: SegmentHead
    position: int
    end: int
    kept_as: Path

    def __str__(self) -> str:
        return f"write the closing mark of {self.segment.path.name} at byte {self.position} anew; no row is lost"


@dataclass(frozen=True, slots=True)
class StartAnew:
    """Replace the first segment, of which nothing is readable, by an empty one that holds the place of its offset."""

    segment: Segment
    head: SegmentHead
    kept_as: Path

    def __str__(self) -> str:
        return f"keep {self.segment.path.name} as {self.kept_as.name} and put an empty segment in its place"


@dataclass(frozen=True, slots=True)
class WriteRecord:
    """Write `topic.json` or `~ends` anew; what was there is copied to `kept_as` first."""

    path: Path
    content: Mapping[str, Any]
    kept_as: Path | None
    why: str

    def __str__(self) -> str:
        kept = f"; the old one is kept as {self.kept_as.name}" if self.kept_as else ""
        return f"write {self.path.name} anew ({self.why}){kept}"


Step = SetAside | Cut | Seal | StartAnew | WriteRecord


@dataclass(slots=True)
class RepairPlan:
    """`rows_cut` are valid rows behind the first bad byte: kept in the files set aside, but in the log no more."""

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
    """The steps that make the topic whole, in an order in which a crash leaves something to repair again."""
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
        try:
            segments = list_segments(self._disk, self._place)
        except FileNotFoundError:
            segments = []
        record, record_flaw = self._read_record()
        if record is None and not segments:
            self._plan_lost(ends)
            return plan
        log_id = record.log_id if record else first_log_id(self._disk, segments)
        if log_id is None:
            raise CorruptLog(str(self._place), 0, "no schema frame is readable to rebuild topic.json; move it away")
        plan.log_id = log_id
        stored = stored_schema(record.schema) if record else None
        found = self._examined(segments, log_id, stored)
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
        """A disk that does not answer is no reason to cut rows that may be good."""
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
        """Segments lost from the beginning cannot be had back: the log begins where its files do."""
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
        """The record as the newest schema frame tells it. The retention is nowhere else: the settings' holds again.

        Neither are epochs of names that were taken and have not written since. So each gets one above all that it may
        have had, and its clients take the name again.
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
        """The highest that all readable frames tell of, also those that go aside; and the highest floor."""
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
                pass  # the plan tells of it
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
        """The folder is gone: all that is left to mend is what `~ends` expects of it."""
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
            plan.steps.append(SetAside(segment.path, self._aside(segment.path)))
        path = bad.segment.path
        if bad.end_position > 0:
            if bad.end_position < bad.segment.used_bytes:
                plan.steps.append(Cut(path, bad.end_position, self._aside(path, bad.end_position)))
        elif at > 0:
            plan.steps.append(SetAside(path, self._aside(path)))
        else:
            head = SegmentHead(record.log_id, str(self._name), self._sync_mode, stored_schema(record.schema))
            plan.steps.append(StartAnew(bad.segment, head, self._aside(path)))

    def _plan_ends(self, ends: Mapping[str, Any], flaw: Flaw | None, log_id: str) -> None:
        """Last of all: until the log is whole, `~ends` must go on to say what it lost."""
        plan, name = self._plan, str(self._name)
        content = {key: known for key, known in ends.items() if known["topic"] != name}
        if log_id in ends:
            content[log_id] = {"topic": name, "end": min(plan.end, plan.end_known)}
        if flaw is not None or content != ends:
            path = self._folder / ENDS_FILE
            why = "it was not readable" if flaw else f"{name} now ends at offset {plan.end}"
            plan.steps.append(WriteRecord(path, content, self._aside(path) if flaw else None, why))

    def _rows_behind(self, bad: Examined, schema: pa.Schema) -> int:
        """Valid rows in the same file behind its first bad byte; frames inside of other frames are not counted."""
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
        """A free name beside a file, for a part or the whole of it."""
        if position is not None:
            return unused_name(self._disk, path, position, CUT_SUFFIX)
        taken = {entry.name for entry in self._disk.list(path.parent)}
        names = (f"{path.name}{f'.{count}' if count else ''}{CUT_SUFFIX}" for count in range(len(taken) + 1))
        return path.parent / next(name for name in names if name not in taken)

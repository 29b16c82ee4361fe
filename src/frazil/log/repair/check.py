"""Read everything and report the first wrong byte. Changes nothing and needs no lock.

An owner may be writing at the same time: bytes after the last good frame of its last segment are then in flight.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog, InvalidName, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.rows import stored_schema
from frazil.core.settings import AckLevel
from frazil.log.folder.catalog import TopicRecord, read_topic_record
from frazil.log.folder.layout import ENDS_FILE, TOPIC_FILE, topic_folder, walk_topics
from frazil.log.format.records import read_record
from frazil.log.read.segment_reader import SegmentReader
from frazil.log.repair.examine import Examined, Flaw, OnSegment, examine_segments
from frazil.log.repair.recovery import TORN_SUFFIX, check_beginning, list_segments
from frazil.log.repair.start_over import ASIDE_SUFFIX
from frazil.log.write.segment import Segment

CUT_SUFFIX = ".cut"
_LOOKS_MAX = 10


class State(enum.StrEnum):
    OK = "ok"
    TORN = "torn tail"
    CORRUPT = "corrupt"


@dataclass(slots=True)
class CheckReport:
    """The result of a check. For a corrupt topic, `frames` and `rows` count what is good before the first bad byte."""

    topic: str
    log_id: str | None = None
    segments: int = 0
    frames: int = 0
    rows: int = 0
    bytes: int = 0
    first_offset: int = 0
    end: int = 0
    in_flight: bool = False
    torn: Flaw | None = None
    flaws: list[Flaw] = field(default_factory=list)
    set_aside: list[str] = field(default_factory=list)

    @property
    def state(self) -> State:
        if self.flaws:
            return State.CORRUPT
        return State.TORN if self.torn else State.OK

    @property
    def flaw(self) -> Flaw | None:
        """The first problem: bytes of the log before records about it."""
        return self.flaws[0] if self.flaws else self.torn

    def as_dict(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "log_id": self.log_id,
            "state": self.state.value,
            "segments": self.segments,
            "frames": self.frames,
            "rows": self.rows,
            "bytes": self.bytes,
            "first_offset": self.first_offset,
            "end": self.end,
            "in_flight": self.in_flight,
            "torn": self.torn.as_dict() if self.torn else None,
            "flaws": [flaw.as_dict() for flaw in self.flaws],
            "set_aside": self.set_aside,
        }


def check(
    disk: Disk,
    folder: Path,
    names: Iterable[TopicName] | None = None,
    *,
    owned: bool = False,
    on_segment: OnSegment | None = None,
) -> Iterator[CheckReport]:
    """Yield a report for each topic of a log folder, or for those named.

    `owned` means that a process owns the folder now. `on_segment` is called after each segment, for progress.
    """
    ends, ends_flaw = read_ends(disk, folder)
    if ends_flaw is not None:
        yield CheckReport(ENDS_FILE, flaws=[ends_flaw])
    present = sorted(name for name, _ in walk_topics(disk, folder))
    wanted = None if names is None else set(names)
    seen: set[str] = set()
    for name in present:
        if wanted is None or name in wanted:
            report = _check_topic(disk, folder, name, ends, owned, on_segment)
            if report is not None:
                seen.add(report.log_id or "")
                yield report
    lost = _lost(disk, folder, ends, seen, wanted)
    yield from lost
    for name in sorted((wanted or set()).difference(present)):
        if str(name) not in {report.topic for report in lost}:
            raise TopicNotFound(str(name))


def read_ends(disk: Disk, folder: Path) -> tuple[dict[str, Any], Flaw | None]:
    """Return the contents of `~ends` by log id, and what is wrong with it."""
    path = folder / ENDS_FILE
    try:
        ends = read_record(disk, path) or {}
        for known in ends.values():
            TopicName.parse(known["topic"])
            if not isinstance(known["end"], int):
                raise TypeError("an end is no offset")
    except CorruptLog as error:
        return {}, Flaw.of(error)
    except (KeyError, TypeError, InvalidName) as error:
        return {}, Flaw(str(path), 0, f"not a valid record ({error})")
    return ends, None


def first_log_id(disk: Disk, segments: Iterable[Segment]) -> str | None:
    """Return the log id of the first readable schema frame, if the topic's own record is unreadable."""
    for segment in segments:
        try:
            reader = SegmentReader(disk, segment)
        except (CorruptLog, OSError):
            continue
        reader.close()
        return reader.head.log_id
    return None


def is_set_aside(name: str) -> bool:
    """Whether the file holds bytes that recovery or repair removed from a log."""
    return name.endswith((TORN_SUFFIX, CUT_SUFFIX, ASIDE_SUFFIX))


def _check_topic(
    disk: Disk, folder: Path, name: TopicName, ends: Mapping[str, Any], owned: bool, on_segment: OnSegment | None
) -> CheckReport | None:
    """Return None if the owner deleted the topic meanwhile.

    With an owner, a flaw counts once two consecutive looks find it: a topic may be deleted and recreated, and a segment
    removed by retention, between two steps of one look.
    """
    before: list[Flaw] | None = None
    for look in range(_LOOKS_MAX):
        last = look == _LOOKS_MAX - 1
        try:
            report = _look(disk, folder, name, ends, owned, on_segment)
        except FileNotFoundError:
            if name not in {present for present, _ in walk_topics(disk, folder)}:
                return None
            if last or not owned:
                raise
            continue
        if not owned or last or not report.flaws or report.flaws == before:
            return report
        before = report.flaws
    raise AssertionError("the last look returns or raises")


def _look(
    disk: Disk, folder: Path, name: TopicName, ends: Mapping[str, Any], owned: bool, on_segment: OnSegment | None
) -> CheckReport:
    place = topic_folder(folder, name)
    report = CheckReport(str(name))
    record, record_flaw = _read(disk, folder, name)
    segments = list_segments(disk, place)
    if not segments and not any(entry.name == TOPIC_FILE for entry in disk.list(place)):
        raise FileNotFoundError(place)  # deleted, and perhaps about to be recreated: at this moment it is no topic
    report.log_id = record.log_id if record else first_log_id(disk, segments)
    report.segments = len(segments)
    report.bytes = sum(segment.used_bytes for segment in segments)
    report.set_aside = sorted(str(place / entry.name) for entry in disk.list(place) if is_set_aside(entry.name))
    report.first_offset = report.end = segments[0].base if segments else 0
    stored = stored_schema(record.schema) if record else None
    last: Examined | None = None
    for last in examine_segments(disk, name, segments, report.log_id or "", stored, owned=owned, on_segment=on_segment):
        _add(report, last)
    report.flaws += [record_flaw] if record_flaw else []
    if record is not None:
        try:
            check_beginning(place, segments, record.first_offset)
        except CorruptLog as error:
            report.flaws.append(Flaw.of(error))
    has_objects = record is not None and record.ack is AckLevel.OBJECT  # what these files lost is in the store
    known = None if has_objects else ends.get(report.log_id or "")
    if known and report.end < known["end"] and not report.flaws:
        report.flaws.append(_too_short(place, last, report.end, known["end"]))
    return report


def _read(disk: Disk, folder: Path, name: TopicName) -> tuple[TopicRecord | None, Flaw | None]:
    try:
        return read_topic_record(disk, folder, name), None
    except CorruptLog as error:
        return None, Flaw.of(error)


def _add(report: CheckReport, found: Examined) -> None:
    report.frames += found.frames
    report.rows += found.end - found.segment.base
    report.end = found.end
    report.in_flight = found.in_flight
    report.torn = found.torn
    if found.flaw is not None:
        report.flaws.append(found.flaw)


def _too_short(folder: Path, last: Examined | None, end: int, known_end: int) -> Flaw:
    if last is None:
        return Flaw(str(folder), 0, f"no segment is left, but rows up to offset {known_end} were acknowledged")
    why = f"the log ends at offset {end}, but offsets up to {known_end} were acknowledged"
    return Flaw(str(last.segment.path), last.end_position, why)


def _lost(
    disk: Disk, folder: Path, ends: Mapping[str, Any], seen: set[str], wanted: set[TopicName] | None
) -> list[CheckReport]:
    """Return the logs in `~ends` that do not exist; checked again at the end, because a topic may have been deleted."""
    still, _ = read_ends(disk, folder)
    reports = []
    for log_id, known in ends.items():
        name = TopicName.parse(known["topic"])
        if log_id in still and log_id not in seen and (wanted is None or name in wanted):
            why = f"the log {log_id} had rows up to offset {known['end']}, and its files are gone"
            reports.append(CheckReport(known["topic"], log_id, flaws=[Flaw(str(topic_folder(folder, name)), 0, why)]))
    return reports

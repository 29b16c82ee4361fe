"""What the owner of a log reports to movers: the durable end, and where its files and objects are."""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog, FrazilError, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.rows import stored_schema
from frazil.core.settings import AckLevel
from frazil.core.stored_objects import StoredObject, held_from
from frazil.log.folder.catalog import read_topic_record
from frazil.log.folder.former import FormerLog
from frazil.log.folder.identity import FolderMark
from frazil.log.folder.layout import topic_folder, topic_names
from frazil.log.repair.check import read_ends
from frazil.log.repair.recovery import list_segments
from frazil.log.repair.survey import summarize
from frazil.log.retention.dropped import dropped_ranges
from frazil.log.storage import Storage
from frazil.log.topic_log import TopicLog

_log = logging.getLogger("frazil.log")


@dataclass(frozen=True, slots=True)
class LogInfo:
    """One log: what is durable of it, and where its files are on the owner's host."""

    topic: TopicName
    log_id: str
    first_offset: int
    durable_end: int
    size_bytes: int
    stored_schema: bytes
    files: tuple[tuple[int, Path], ...]
    dropped: tuple[OffsetRange, ...] = ()
    """Ranges that retention removed without a table that holds their rows. Any other range below `first_offset` must be
    in the table, or is lost."""
    opened: str = ""
    """Unique for each opening of the log, within which it never goes back; empty if it is not open."""
    former: tuple[FormerLog, ...] = ()
    """The logs that this one has replaced, oldest first."""
    folder: FolderMark | None = None
    """The folder of the files, as their owner knows it; None if unknown."""
    objects: tuple[StoredObject, ...] = ()
    """The uploaded objects of the log, by offset. They may hold rows that the files no longer have."""
    objects_problem: str | None = None
    """Why it is not known which objects there are."""
    is_in_objects: bool = False
    """Whether its objects decide which rows there are, and the files without their owner do not: ack level `object`."""

    @property
    def bytes_per_row(self) -> float:
        if self.durable_end > self.first_offset:
            return self.size_bytes / (self.durable_end - self.first_offset)
        last = self.objects[-1] if self.objects else None
        return 0.0 if last is None or last.range is None else last.size_bytes / len(last.range)

    @property
    def held_from(self) -> int:
        """Return where the rows begin that files or objects hold without a gap."""
        return held_from(self.first_offset, self.objects)

    def check_objects(self) -> None:
        """Raise `FrazilError` if it is not known which objects there are: rows may be there that seem lost."""
        if self.objects_problem is not None:
            raise FrazilError(f"{self.topic}: its objects can't be found: {self.objects_problem}")


def covering(objects: Sequence[StoredObject], wanted: OffsetRange) -> tuple[StoredObject, ...]:
    """Return the objects that hold a range, from its first offset on as far as they reach; none without that."""
    held: list[StoredObject] = []
    end = wanted.start
    for place in range(max(0, bisect.bisect_right(objects, wanted.start, key=_first) - 1), len(objects)):
        one = objects[place]
        if one.first > end or one.first >= wanted.end:
            break
        if one.end > end:
            held.append(one)
            end = one.end
    return tuple(held)


def _first(one: StoredObject) -> int:
    return one.first


class LogList:
    """The logs of a storage. A log that cannot be opened is left out and reported once; the others continue."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._reported: set[str] = set()

    def read(self) -> list[LogInfo]:
        found = []
        for name in self._storage.topics():
            try:
                found.append(log_info(self._storage, name))
            except TopicNotFound:
                continue  # deleted since
            except CorruptLog as error:
                self._tell(name, error)
            except OSError as error:
                self._tell(name, FrazilError(f"its log cannot be read: {error}"))
            else:
                self._reported.discard(name)
        return found

    def _tell(self, name: str, error: FrazilError) -> None:
        if name not in self._reported:
            self._reported.add(name)
            _log.error("%s is not moved to its table: %s", name, error, extra={"topic": name})


def log_info(storage: Storage, name: str) -> LogInfo:
    """One log of a storage, as its owner knows it."""
    return info_of(storage.topic(name, create=False).log, storage.folder_mark)


def info_of(log: TopicLog, folder: FolderMark | None) -> LogInfo:
    """One open log. What is written is made durable first, in any sync mode."""
    end = log.flush()
    segments = log.segments
    objects, problem = objects_or_problem(log.colder.objects)
    return LogInfo(
        log.name,
        log.log_id,
        log.first_offset,
        end,
        sum(segment.used_bytes for segment in segments),
        bytes(log.schema.serialize()),
        tuple((segment.base, segment.path.absolute()) for segment in segments),
        dropped_ranges(log.removal.dropped),
        log.opened,
        log.former,
        folder,
        objects,
        problem,
    )


def objects_or_problem(objects: Callable[[], tuple[StoredObject, ...]]) -> tuple[tuple[StoredObject, ...], str | None]:
    """Ask for the objects of a log. A store that does not answer, or a damaged object, is an answer, too."""
    try:
        return objects(), None
    except FrazilError as error:
        return (), error.message


def logs_from_files(disk: Disk, folder: Path) -> tuple[list[LogInfo], dict[str, str]]:
    """Return the logs without asking an owner, and what is wrong with the others. For display, not for moving: the
    owner may not yet have synced the last rows in the files."""
    found: list[LogInfo] = []
    problems: dict[str, str] = {}
    ends, flaw = read_ends(disk, folder)
    for name in topic_names(disk, folder):
        one = log_from_files(disk, folder, name, ends) if flaw is None else f"{flaw.path} is corrupt: {flaw.reason}"
        if isinstance(one, LogInfo):
            found.append(one)
        else:
            problems[str(name)] = one
    return found, problems


def log_from_files(disk: Disk, folder: Path, name: TopicName, ends: Mapping[str, Any]) -> LogInfo | str:
    """Return one log, or what is wrong with it. `ends` is the earlier content of `~ends`."""
    one = summarize(disk, folder, name, ends)
    if one.problem is not None or one.log_id is None or one.end is None:
        return one.problem or "it cannot be read"
    segments = list_segments(disk, topic_folder(folder, name))
    files = tuple((segment.base, segment.path.absolute()) for segment in segments)
    schema = bytes(stored_schema(one.schema).serialize())
    try:  # after the segments were listed: retention records what it drops before it removes it
        record = read_topic_record(disk, folder, name)
    except (CorruptLog, FileNotFoundError):
        return "it was deleted during the look"
    same = record.log_id == one.log_id
    dropped = dropped_ranges(record.dropped) if same else ()
    former = record.former if same else ()
    place = (name, one.log_id, one.first_offset, one.end, one.bytes, schema, files, dropped)
    return LogInfo(*place, former=former, is_in_objects=one.ack == AckLevel.OBJECT)


def as_json(info: LogInfo) -> dict[str, object]:
    return {
        "topic": str(info.topic),
        "log_id": info.log_id,
        "first_offset": info.first_offset,
        "durable_end": info.durable_end,
        "size_bytes": info.size_bytes,
        "stored_schema": info.stored_schema.hex(),
        "files": [[base, str(path)] for base, path in info.files],
        "dropped": [[each.start, each.end] for each in info.dropped],
        "opened": info.opened,
        "former": [one.as_content() for one in info.former],
        "folder": None if info.folder is None else [str(info.folder.path), info.folder.mark],
        "objects": [[one.epoch, one.first, one.end, one.size_bytes, one.etag] for one in info.objects],
        "objects_problem": info.objects_problem,
    }


def from_json(one: Mapping[str, Any]) -> LogInfo:
    return LogInfo(
        TopicName.parse(one["topic"]),
        one["log_id"],
        int(one["first_offset"]),
        int(one["durable_end"]),
        int(one["size_bytes"]),
        bytes.fromhex(one["stored_schema"]),
        tuple((int(base), Path(path)) for base, path in one["files"]),
        tuple(OffsetRange(int(start), int(end)) for start, end in one.get("dropped", ())),
        str(one.get("opened", "")),
        tuple(FormerLog.from_content(each) for each in one.get("former", ())),
        FolderMark(Path(one["folder"][0]), one["folder"][1]) if one.get("folder") else None,
        tuple(StoredObject(one["log_id"], *each) for each in one.get("objects", ())),
        one.get("objects_problem"),
    )

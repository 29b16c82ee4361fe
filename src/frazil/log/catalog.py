"""Which topics a folder holds, what each is, and how far each is known to reach.

    {log folder}/{namespace}/{topic}                     see `folder`
    {log folder}/~ends                                   offsets below which each log was durable
    {log folder}/~spare                                  room to write a record when the disk is full
    {log folder}/~trash/{random}                         topics being deleted
    {log folder}/~renumber…                              see `renumbering`

`~` cannot be in a name, so nothing here can meet a namespace.
"""

from __future__ import annotations

import base64
import logging
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog, DiskFull, InvalidInput
from frazil.core.names import TopicName
from frazil.core.sequences import Opening, Sent
from frazil.core.settings import RetentionSettings
from frazil.log.dropped import Dropped, dropped_below, with_dropped
from frazil.log.folder import ENDS_FILE, SUFFIX, TOPIC_FILE, topic_folder, walk_topics
from frazil.log.former import FormerLog
from frazil.log.producers import ProducersRecord
from frazil.log.records import needs_room, read_record, write_record
from frazil.log.renumbering import finish_renumbering
from frazil.log.spare import SpareRoom

TRASH_FOLDER = "~trash"
SPARE_FILE = "~spare"

Made = TypeVar("Made")

_log = logging.getLogger("frazil.log")


@dataclass(frozen=True, slots=True)
class TopicRecord:
    name: TopicName
    log_id: str
    created_us: int
    schema: pa.Schema | None
    retention: RetentionSettings | None
    first_offset: int = 0
    """Where the log begins; raised before retention removes what is below, so that a lost segment is told apart."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Of producers whose names were taken: an older client must not get its name back by a crash."""
    floor: int = 0
    """Above the epoch of every producer that was forgotten, and of those unknown where the record was rebuilt."""
    dropped: tuple[Dropped, ...] = ()
    """Ranges below `first_offset` that retention removed while no table was there to hold them."""
    last_time_us: int = 0
    """The last append time when retention last removed rows: the next row must not be older, though none is left."""
    clients: Mapping[str, str] = field(default_factory=dict)
    """By producer the id of the client that opened its epoch."""
    former: tuple[FormerLog, ...] = ()
    """The logs whose place this one has taken, the oldest first."""

    @classmethod
    def new(
        cls,
        name: TopicName,
        now_us: int,
        schema: pa.Schema | None,
        retention: RetentionSettings | None,
        log_id: str | None = None,
    ) -> TopicRecord:
        return cls(name, log_id or str(uuid.uuid4()), now_us, schema, retention)

    def with_schema(self, schema: pa.Schema) -> TopicRecord:
        return replace(self, schema=schema)

    def with_retention(self, retention: RetentionSettings | None) -> TopicRecord:
        return replace(self, retention=retention)

    def with_first_offset(self, first_offset: int) -> TopicRecord:
        return replace(self, first_offset=first_offset, dropped=dropped_below(self.dropped, first_offset))

    def with_removed(self, first_offset: int, dropped: Dropped | None, last_time_us: int) -> TopicRecord:
        """Retention removes what is below `first_offset`; `dropped` are the rows of it that no table holds."""
        known = self.dropped if dropped is None else with_dropped(self.dropped, dropped)
        last_time_us = max(self.last_time_us, last_time_us)
        return replace(self, first_offset=first_offset, dropped=known, last_time_us=last_time_us)

    @property
    def producers(self) -> ProducersRecord:
        return ProducersRecord(self.epochs, self.clients, self.floor)

    def with_producers(self, told: ProducersRecord) -> TopicRecord:
        return replace(self, epochs=told.epochs, clients=told.clients, floor=max(self.floor, told.floor))

    def as_content(self) -> dict[str, Any]:
        schema = None if self.schema is None else base64.b64encode(self.schema.serialize()).decode()
        retention = None if self.retention is None else self.retention.model_dump()
        return {
            "topic": str(self.name),
            "log_id": self.log_id,
            "created_us": self.created_us,
            "schema": schema,
            "retention": retention,
            "first_offset": self.first_offset,
            **({"epochs": dict(self.epochs)} if self.epochs else {}),
            **({"floor": self.floor} if self.floor else {}),
            **({"dropped": [one.as_content() for one in self.dropped]} if self.dropped else {}),
            **({"last_time_us": self.last_time_us} if self.last_time_us else {}),
            **({"clients": dict(self.clients)} if self.clients else {}),
            **({"former": [one.as_content() for one in self.former]} if self.former else {}),
        }

    @classmethod
    def from_content(cls, path: Path, content: Mapping[str, Any]) -> TopicRecord:
        try:
            schema = content["schema"]
            retention = content["retention"]
            return cls(
                TopicName.parse(content["topic"]),
                str(content["log_id"]),
                int(content["created_us"]),
                None if schema is None else pa.ipc.read_schema(pa.py_buffer(base64.b64decode(schema))),
                None if retention is None else RetentionSettings(**retention),
                int(content["first_offset"]),
                {name: Sent(name, epoch, 0).epoch for name, epoch in content.get("epochs", {}).items()},
                Sent("floor", content.get("floor", 0), 0).epoch,
                tuple(Dropped.from_content(one) for one in content.get("dropped", ())),
                int(content.get("last_time_us", 0)),
                {name: Opening(client).client for name, client in content.get("clients", {}).items()},
                tuple(FormerLog.from_content(one) for one in content.get("former", ())),
            )
        except (KeyError, ValueError, TypeError, AttributeError, InvalidInput, pa.ArrowException, OSError) as error:
            raise CorruptLog(str(path), 0, f"not a topic record ({error})") from None


class TopicCatalog:
    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._updating = threading.Lock()
        self._spare = SpareRoom(disk, folder / SPARE_FILE)
        self._names: set[TopicName] = set()
        self._unclear: set[TopicName] = set()
        """Deletions that failed, of which it is not known whether they took effect."""
        self._partitions: Counter[TopicName] = Counter()
        self._folded: dict[str, set[TopicName]] = {}
        self.size_bytes = 0
        self._trash_left = False
        self._empty_trash()
        finish_renumbering(disk, folder)
        for name, size_bytes in walk_topics(disk, folder):
            self._add(name)
            self.size_bytes += size_bytes
        self._ends: dict[str, Any] = read_record(disk, folder / ENDS_FILE) or {}

    def __contains__(self, name: object) -> bool:
        self._settle_deletions()
        return name in self._names

    def names(self) -> set[TopicName]:
        self._settle_deletions()
        return set(self._names)

    def family(self, name: TopicName) -> set[TopicName]:
        """The topic that `name` is, or is a partition of, and its partitions: those of them that are there."""
        self._settle_deletions()
        base = name.partition_of()[0]
        return {one for one in self._folded.get(str(base).lower(), ()) if one.partition_of()[0] == base}

    def has_partitions(self, name: TopicName) -> bool:
        return self._partitions[name] > 0

    def twin(self, name: TopicName) -> TopicName | None:
        """A topic whose table's name differs from that of this one in case alone."""
        base = name.partition_of()[0]
        others = self._folded.get(str(base).lower(), set())
        return next((other for other in sorted(others) if other.partition_of()[0] != base), None)

    def same_partition(self, name: TopicName) -> TopicName | None:
        """A topic that is the same partition as this one, spelled otherwise: with more zeros."""
        base, number = name.partition_of()
        others = self._folded.get(str(base).lower(), set())
        return next((other for other in sorted(others) if other.partition_of() == (base, number)), None)

    def _add(self, name: TopicName) -> None:
        base = name.partition_of()[0]
        self._folded.setdefault(str(base).lower(), set()).add(name)
        if base != name and name not in self._names:
            self._partitions[base] += 1
        self._names.add(name)

    def _discard(self, name: TopicName) -> None:
        base = name.partition_of()[0]
        folded = self._folded.get(str(base).lower(), set())
        folded.discard(name)
        if not folded:
            self._folded.pop(str(base).lower(), None)
        if base != name and name in self._names:
            self._partitions[base] -= 1
            if not self._partitions[base]:
                del self._partitions[base]
        self._names.discard(name)

    def folder(self, name: TopicName) -> Path:
        return topic_folder(self._folder, name)

    def create(self, record: TopicRecord) -> None:
        """Durable when it returns: a crash before leaves a folder without a record, which is no topic."""
        self._disk.make_folder(self.folder(record.name))
        self._write(record)
        self._add(record.name)

    def update(
        self, name: TopicName, change: Callable[[TopicRecord], TopicRecord], *, makes_room: bool = False
    ) -> TopicRecord:
        """Replace a topic's record by what `change` makes of it, one at a time."""
        with self._updating:
            changed = change(self.read(name))
            if makes_room:
                self.with_spare_room(lambda: self._write(changed))
            else:
                self._write(changed)
            return changed

    def _write(self, record: TopicRecord) -> None:
        write_record(self._disk, self.folder(record.name) / TOPIC_FILE, record.as_content())

    def with_spare_room(self, act: Callable[[], Made]) -> Made:
        """Do what makes room; on a full disk the spare room is given up for it, and for nothing else."""
        try:
            return act()
        except DiskFull:
            if not self._spare.give_up():
                raise
        try:
            return act()
        finally:
            self._spare.keep()

    def read(self, name: TopicName) -> TopicRecord:
        return read_topic_record(self._disk, self._folder, name)

    def delete(self, name: TopicName) -> int:
        """Move the folder out of sight in one step, then remove it; returns the bytes of its segments.

        What `~ends` says of it goes first: a crash in between must not leave a topic that looks lost.
        """
        self.with_spare_room(lambda: self._forget_ends(name))
        folder = self.folder(name)
        size = sum(entry.size_bytes for entry in self._disk.list(folder) if entry.name.endswith(SUFFIX))
        trash = self._folder / TRASH_FOLDER
        self._unclear.add(name)
        self.with_spare_room(lambda: self._move_to_trash(folder, trash))
        self._unclear.discard(name)
        self._discard(name)
        self._disk.sync_folder(folder.parent)
        self._disk.sync_folder(trash)
        self._empty_trash()
        return size

    def _move_to_trash(self, folder: Path, trash: Path) -> None:
        with needs_room(trash):
            self._disk.make_folder(trash)
            try:
                self._disk.rename(folder, trash / str(uuid.uuid4()))
            except OSError:
                if self._is_there(folder):
                    raise
                # it took effect all the same: the topic is gone, and must not be listed any longer

    def _settle_deletions(self) -> None:
        """Ask the disk what became of deletions that failed, until it answers: the topic is wholly there or gone."""
        for name in list(self._unclear):
            try:
                is_there = self._is_there(self.folder(name))
            except OSError:
                continue  # asked again with the next call
            self._unclear.discard(name)
            if not is_there:
                self._discard(name)

    def _is_there(self, folder: Path) -> bool:
        return any(entry.name == folder.name for entry in self._disk.list(folder.parent))

    def end_of(self, log_id: str) -> int:
        """An offset up to which the log is known to have been durable; 0 if nothing is known."""
        known = self._ends.get(log_id)
        return int(known["end"]) if known else 0

    def record_ends(self, ends: Mapping[str, tuple[str, int]]) -> None:
        """Remember how far logs reach, so that a later loss is seen even where the files look whole."""
        changed = {
            log_id: {"topic": topic, "end": end} for log_id, (topic, end) in ends.items() if end > self.end_of(log_id)
        }
        if changed:
            self._write_ends({**self._ends, **changed})

    def _forget_ends(self, name: TopicName) -> None:
        kept = {log_id: known for log_id, known in self._ends.items() if known.get("topic") != str(name)}
        if len(kept) < len(self._ends):
            self._write_ends(kept)

    def _write_ends(self, ends: dict[str, Any]) -> None:
        """What is remembered here follows what is on the disk: a write that fails is tried again."""
        write_record(self._disk, self._folder / ENDS_FILE, ends)
        self._ends = ends

    def maintain(self) -> None:
        """Hold the spare room again, and try again to remove what could not be removed."""
        self._spare.keep()
        if self._trash_left:
            self._empty_trash()

    def _empty_trash(self) -> None:
        """Remove deleted topics. What can't be removed harms nobody: it is reported, and tried again."""
        self._trash_left = True
        try:
            if any(entry.name == TRASH_FOLDER and entry.is_folder for entry in self._disk.list(self._folder)):
                trash = self._folder / TRASH_FOLDER
                if self._disk.list(trash):
                    self._disk.sync_folder(trash)  # left by a killed process: else a topic could come back in part
                self._empty_folder(trash)
            self._trash_left = False
        except OSError as error:
            _log.warning("a deleted topic is not removed from ~trash yet, and is tried again: %s", error)

    def _empty_folder(self, folder: Path) -> None:
        for entry in self._disk.list(folder):
            path = folder / entry.name
            if entry.is_folder:
                self._empty_folder(path)
                self._disk.remove_folder(path)
            else:
                self._disk.remove(path)


class TopicRecorder:
    """Changes to the record of one topic, each durable when it returns, for the log that must not forget them."""

    def __init__(self, catalog: TopicCatalog, name: TopicName) -> None:
        self._catalog = catalog
        self._name = name

    def record_removed(self, first_offset: int, dropped: Dropped | None, last_time_us: int) -> tuple[Dropped, ...]:
        """Where the log begins from now on, and what of the rows below is held by no table; all that is so."""
        return self._catalog.update(
            self._name, lambda record: record.with_removed(first_offset, dropped, last_time_us), makes_room=True
        ).dropped

    def with_spare_room(self, act: Callable[[], Made]) -> Made:
        """Do what makes room, on a full disk too; see `TopicCatalog.with_spare_room`."""
        return self._catalog.with_spare_room(act)

    def record_producers(self, told: ProducersRecord) -> None:
        self._catalog.update(self._name, lambda record: record.with_producers(told))


def read_topic_record(disk: Disk, folder: Path, name: TopicName) -> TopicRecord:
    """What a topic is, or `CorruptLog`."""
    path = topic_folder(folder, name, TOPIC_FILE)
    content = read_record(disk, path)
    if content is None:
        raise CorruptLog(str(path), 0, "the topic's record is missing, but there are segments")
    record = TopicRecord.from_content(path, content)
    if record.name != name:
        raise CorruptLog(str(path), 0, f"this record belongs to {record.name}")
    return record

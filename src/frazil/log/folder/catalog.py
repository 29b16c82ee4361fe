"""The topics of a folder, their records, and their known ends.

    {log folder}/{namespace}/{topic}                     see `folder`
    {log folder}/~ends                                   offsets below which each log was durable
    {log folder}/~spare                                  space to write a record when the disk is full
    {log folder}/~trash/{random}                         topics being deleted
    {log folder}/~renumber…                              see `renumbering`
    {log folder}/~adopting/{log id}                      see `adoption`
    {log folder}/~lost/{namespace}/{topic}/{random}      see `log.folder.admission`

`~` cannot be in a name, so nothing here can collide with a namespace.
"""

from __future__ import annotations

import base64
import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog, DiskFull, InvalidInput, TryLater
from frazil.core.names import TopicName
from frazil.core.sequences import ProducerOpening, Sent
from frazil.core.settings import AckLevel, RetentionSettings, WalSettings
from frazil.core.topic_names import TopicNames
from frazil.log.folder.adoption import AdoptedLog, build_adopted, put_in_place, remove_unfinished_adoptions
from frazil.log.folder.former import FormerLog
from frazil.log.folder.layout import ENDS_FILE, SUFFIX, TOPIC_FILE, topic_folder, walk_topics
from frazil.log.format.records import read_record, temporary_disk_errors, write_record
from frazil.log.repair.renumbering import finish_renumbering
from frazil.log.retention.dropped import DroppedRange, dropped_below, with_dropped
from frazil.log.write.disk_budget import DiskBudget
from frazil.log.write.producers import ProducersRecord
from frazil.log.write.reserve import SpaceReserve

TRASH_FOLDER = "~trash"
LOST_FOLDER = "~lost"
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
    """Where the log begins; raised before retention removes older segments, so that a lost segment is detected."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """Epochs of producer names that were taken: a crash must not give a name back to an older client."""
    floor: int = 0
    """Above the epoch of every forgotten producer, and of those unknown because the record was rebuilt."""
    dropped: tuple[DroppedRange, ...] = ()
    """Ranges below `first_offset` that retention removed without a table that holds them."""
    last_time_us: int = 0
    """The last append time when retention last removed rows: the next row must not be older, even if none is left."""
    clients: Mapping[str, str] = field(default_factory=dict)
    """The id of the client that opened each producer's epoch."""
    former: tuple[FormerLog, ...] = ()
    """The logs that this one has replaced, oldest first."""
    owner_epoch: int = 0
    """In a cluster, the epoch of the topic's record when this broker opened the log last; 0 if it never did."""
    ack: AckLevel = AckLevel.DISK
    """What the topic's rows have reached when they are acknowledged. Fixed when the topic is created."""
    object_epoch: int = 0
    """With ack level `object`, or in a cluster, the last epoch in which this process stored rows of these files: later
    ones are of others."""

    @classmethod
    def new(
        cls,
        name: TopicName,
        now_us: int,
        schema: pa.Schema | None,
        retention: RetentionSettings | None,
        log_id: str | None = None,
        ack: AckLevel = AckLevel.DISK,
    ) -> TopicRecord:
        return cls(name, log_id or str(uuid.uuid4()), now_us, schema, retention, ack=ack)

    @classmethod
    def adopted(cls, name: TopicName, log: AdoptedLog) -> TopicRecord:
        """Return the record of a log that goes on behind rows stored elsewhere."""
        made = cls(name, log.log_id, log.created_us, log.schema, log.retention, log.end)
        made = replace(made, last_time_us=log.last_time_us, ack=log.ack, dropped=log.dropped)
        return made.with_producers(log.producers_record)

    def with_schema(self, schema: pa.Schema) -> TopicRecord:
        return replace(self, schema=schema)

    def with_retention(self, retention: RetentionSettings | None) -> TopicRecord:
        return replace(self, retention=retention)

    def with_first_offset(self, first_offset: int) -> TopicRecord:
        return replace(self, first_offset=first_offset, dropped=dropped_below(self.dropped, first_offset))

    def with_removed(self, first_offset: int, dropped: DroppedRange | None, last_time_us: int) -> TopicRecord:
        """Record that retention removes rows below `first_offset`; `dropped` are those that no table holds."""
        known = self.dropped if dropped is None else with_dropped(self.dropped, dropped)
        last_time_us = max(self.last_time_us, last_time_us)
        return replace(self, first_offset=first_offset, dropped=known, last_time_us=last_time_us)

    def with_epochs(self, owner_epoch: int, object_epoch: int) -> TopicRecord:
        return replace(self, owner_epoch=owner_epoch, object_epoch=object_epoch)

    @property
    def producers(self) -> ProducersRecord:
        return ProducersRecord(self.epochs, self.clients, self.floor)

    def with_producers(self, producers: ProducersRecord) -> TopicRecord:
        return replace(self, epochs=producers.epochs, clients=producers.clients, floor=max(self.floor, producers.floor))

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
            **({"owner_epoch": self.owner_epoch} if self.owner_epoch else {}),
            **({"object_epoch": self.object_epoch} if self.object_epoch else {}),
            **({"ack": self.ack.value} if self.ack is not AckLevel.DISK else {}),
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
                tuple(DroppedRange.from_content(one) for one in content.get("dropped", ())),
                int(content.get("last_time_us", 0)),
                {name: ProducerOpening(client).client for name, client in content.get("clients", {}).items()},
                tuple(FormerLog.from_content(one) for one in content.get("former", ())),
                int(content.get("owner_epoch", 0)),
                AckLevel(content.get("ack", AckLevel.DISK)),
                int(content.get("object_epoch", 0)),
            )
        except (KeyError, ValueError, TypeError, AttributeError, InvalidInput, pa.ArrowException, OSError) as error:
            raise CorruptLog(str(path), 0, f"not a topic record ({error})") from None


class TopicCatalog:
    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder
        self._updating = threading.Lock()
        self._spare = SpaceReserve(disk, folder / SPARE_FILE)
        self._names = TopicNames()
        self._withheld: set[TopicName] = set()
        self._moving = threading.Lock()
        """Held for a moment while a topic is withheld or admitted: nobody sees the folder without it."""
        self._unclear: set[TopicName] = set()
        """Deletions that failed, of which it is not known whether they took effect."""
        self.size_bytes = 0
        self._trash_left = False
        self._empty_trash()
        finish_renumbering(disk, folder)
        remove_unfinished_adoptions(disk, folder)
        for name, size_bytes in walk_topics(disk, folder):
            self._names.add(name)
            self.size_bytes += size_bytes
        self._ends: dict[str, Any] = read_record(disk, folder / ENDS_FILE) or {}

    def __contains__(self, name: object) -> bool:
        self._settle_deletions()
        return name in self._names

    def names(self) -> set[TopicName]:
        self._settle_deletions()
        return self._names.all()

    def family(self, name: TopicName) -> set[TopicName]:
        """Return the topic or base topic of `name`, and its partitions, as far as they exist."""
        self._settle_deletions()
        return self._names.family(name)

    def has_partitions(self, name: TopicName) -> bool:
        return self._names.has_partitions(name)

    def check_new(self, name: TopicName) -> None:
        """Refuse the name of a new topic; see `TopicNames`."""
        self._settle_deletions()
        self._names.check_new(name)
        if name in self._withheld:
            raise TryLater(f"an earlier log of {name} is not put away yet; try again")

    def folder(self, name: TopicName) -> Path:
        return topic_folder(self._folder, name)

    def create(self, record: TopicRecord) -> None:
        """Create a topic, durably: a crash before leaves a folder without a record, which is not a topic."""
        self._disk.make_folder(self.folder(record.name))
        self._write(record)
        self._names.add(record.name)

    def adopt(self, name: TopicName, log: AdoptedLog, settings: WalSettings, budget: DiskBudget) -> None:
        """Create a topic that goes on behind rows stored elsewhere, whole and durably; see `adoption`.

        Raises `CorruptLog` if the folder knows of later rows of that log: they would be lost.
        """
        place, known = self.folder(name), self.end_of(log.log_id)
        if known > log.end:
            why = f"this folder had rows of {log.log_id} up to offset {known}; adopting it at {log.end} would lose them"
            raise CorruptLog(str(place), 0, why)
        record = TopicRecord.adopted(name, log).as_content()
        with temporary_disk_errors(place):
            built = build_adopted(self._disk, settings, budget, self._folder, name, log, record)
        put_in_place(self._disk, built, place, lambda: self._move_to_trash(place, self._folder / TRASH_FOLDER))
        self._names.add(name)
        self._empty_trash()
        remove_unfinished_adoptions(self._disk, self._folder)

    def update(
        self, name: TopicName, change: Callable[[TopicRecord], TopicRecord], *, makes_room: bool = False
    ) -> TopicRecord:
        """Replace a topic's record by the result of `change`, one at a time."""
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
        """Run an operation that frees space; on a full disk it may use the reserve."""
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
        """Move the folder to the trash atomically, then remove it; returns the bytes of its segments.

        Its entry in `~ends` is removed first: a crash in between must not leave a topic that looks lost.
        """
        self.with_spare_room(lambda: self._forget_ends(name))
        folder = self.folder(name)
        size = sum(entry.size_bytes for entry in self._disk.list(folder) if entry.name.endswith(SUFFIX))
        trash = self._folder / TRASH_FOLDER
        self._unclear.add(name)
        self.with_spare_room(lambda: self._move_to_trash(folder, trash))
        self._unclear.discard(name)
        self._names.discard(name)
        self._disk.sync_folder(folder.parent)
        self._disk.sync_folder(trash)
        self._empty_trash()
        return size

    # --- topics that are not served, see `log.folder.admission`

    @property
    def changes(self) -> int:
        """Incremented whenever a topic is added, removed, withheld or admitted."""
        return self._names.changes

    def names_in_folder(self) -> set[TopicName]:
        """Return all topics, withheld or not. Asks no disk, and may be called by any thread."""
        with self._moving:
            return self._names.all() | self.withheld()

    def withheld(self) -> set[TopicName]:
        return set(self._withheld)

    def withhold(self, name: TopicName) -> None:
        """Hide a topic; its folder stays."""
        with self._moving:
            self._names.discard(name)
            self._withheld.add(name)

    def admit(self, name: TopicName) -> None:
        with self._moving:
            self._withheld.discard(name)
            self._names.add(name)

    def delete_withheld(self, name: TopicName) -> int:
        size = self.delete(name)
        self._withheld.discard(name)
        self._names.discard(name)
        return size

    def set_aside(self, name: TopicName) -> Path:
        """Move the folder of a withheld topic to `~lost`, for people, and return it. Its bytes stay on the disk."""
        folder = self.folder(name)
        aside = self._folder / LOST_FOLDER / name.namespace / name.topic / str(uuid.uuid4())
        with temporary_disk_errors(aside):
            self._disk.make_folder(aside.parent)
            self._disk.rename(folder, aside)
            self._disk.sync_folder(aside.parent)
            self._disk.sync_folder(folder.parent)
        self._forget_ends(name)
        self._withheld.discard(name)
        self._names.discard(name)
        return aside

    def _move_to_trash(self, folder: Path, trash: Path) -> None:
        with temporary_disk_errors(trash):
            self._disk.make_folder(trash)
            try:
                self._disk.rename(folder, trash / str(uuid.uuid4()))
            except OSError:
                if self._is_there(folder):
                    raise
                # it took effect: the topic is gone, and must no longer be listed

    def _settle_deletions(self) -> None:
        """Ask the disk for the outcome of failed deletions, until it answers: the topic exists completely or not at
        all."""
        for name in list(self._unclear):
            try:
                is_there = self._is_there(self.folder(name))
            except OSError:
                continue  # asked again with the next call
            self._unclear.discard(name)
            if not is_there:
                self._names.discard(name)

    def _is_there(self, folder: Path) -> bool:
        return any(entry.name == folder.name for entry in self._disk.list(folder.parent))

    def end_of(self, log_id: str) -> int:
        """Return an offset up to which the log was durable; 0 if unknown."""
        known = self._ends.get(log_id)
        return int(known["end"]) if known else 0

    def record_ends(self, ends: Mapping[str, tuple[str, int]]) -> None:
        """Record the ends of logs, so that a later loss is detected even if the files look complete."""
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
        """Write the ends, and update the cached state only after success: a failed write is retried."""
        write_record(self._disk, self._folder / ENDS_FILE, ends)
        self._ends = ends

    def maintain(self) -> None:
        """Reserve the spare space again, and retry failed removals."""
        self._spare.keep()
        if self._trash_left:
            self._empty_trash()

    def _empty_trash(self) -> None:
        """Remove deleted topics. A failed removal is harmless: it is reported and retried."""
        self._trash_left = True
        try:
            if any(entry.name == TRASH_FOLDER and entry.is_folder for entry in self._disk.list(self._folder)):
                trash = self._folder / TRASH_FOLDER
                if self._disk.list(trash):
                    self._disk.sync_folder(trash)  # left by a killed process: otherwise a topic could reappear in part
                self._empty_folder(trash)
            self._trash_left = False
        except OSError as error:
            _log.warning("a deleted topic is not removed from ~trash yet; this is retried: %s", error)

    def _empty_folder(self, folder: Path) -> None:
        for entry in self._disk.list(folder):
            path = folder / entry.name
            if entry.is_folder:
                self._empty_folder(path)
                self._disk.remove_folder(path)
            else:
                self._disk.remove(path)


class TopicRecorder:
    """Changes to the record of one topic, each durable when it returns."""

    def __init__(self, catalog: TopicCatalog, name: TopicName) -> None:
        self._catalog = catalog
        self._name = name

    def record_removed(
        self, first_offset: int, dropped: DroppedRange | None, last_time_us: int
    ) -> tuple[DroppedRange, ...]:
        """Record the log's new beginning, and the removed rows that no table holds."""
        return self._catalog.update(
            self._name, lambda record: record.with_removed(first_offset, dropped, last_time_us), makes_room=True
        ).dropped

    def record_object_epoch(self, epoch: int) -> None:
        """Record the epoch in which the next rows of the files are stored."""
        self._catalog.update(self._name, lambda record: replace(record, object_epoch=epoch))

    def record_start_over(self, first_offset: int, last_time_us: int, schema: pa.Schema | None) -> pa.Schema | None:
        """Record that the files begin at an offset; the rows below are in objects. Returns the topic's columns."""

        def changed(record: TopicRecord) -> TopicRecord:
            last_us = max(last_time_us, record.last_time_us)
            return replace(record.with_first_offset(first_offset), last_time_us=last_us, schema=schema or record.schema)

        return self._catalog.update(self._name, changed).schema

    def record_dropped(self, dropped: DroppedRange) -> tuple[DroppedRange, ...]:
        """Record rows below the log's beginning that no tier holds from now on."""
        return self._catalog.update(
            self._name, lambda record: replace(record, dropped=with_dropped(record.dropped, dropped)), makes_room=True
        ).dropped

    def with_spare_room(self, act: Callable[[], Made]) -> Made:
        """Run an operation that frees space, even on a full disk; see `TopicCatalog.with_spare_room`."""
        return self._catalog.with_spare_room(act)

    def record_producers(self, producers: ProducersRecord) -> None:
        self._catalog.update(self._name, lambda record: record.with_producers(producers))


def read_topic_record(disk: Disk, folder: Path, name: TopicName) -> TopicRecord:
    """Return a topic's record, or raise `CorruptLog`."""
    path = topic_folder(folder, name, TOPIC_FILE)
    content = read_record(disk, path)
    if content is None:
        raise CorruptLog(str(path), 0, "the topic's record is missing, but there are segments")
    record = TopicRecord.from_content(path, content)
    if record.name != name:
        raise CorruptLog(str(path), 0, f"this record belongs to {record.name}")
    return record

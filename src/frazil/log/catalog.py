"""Which topics a folder holds, what each is, and how far each is known to reach.

    {log folder}/{namespace}/{topic}                     see `folder`
    {log folder}/~ends                                   offsets below which each log was durable
    {log folder}/~spare                                  room to write a record when the disk is full
    {log folder}/~trash/{random}                         topics being deleted

`~` cannot be in a name, so nothing here can meet a namespace.
"""

from __future__ import annotations

import base64
import threading
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import CorruptLog, DiskFull, InvalidInput
from frazil.core.names import TopicName
from frazil.core.sequences import Sent
from frazil.core.settings import RetentionSettings
from frazil.log.folder import SUFFIX, TOPIC_FILE, topic_folder, walk_topics
from frazil.log.records import read_record, write_record
from frazil.log.spare import SpareRoom

ENDS_FILE = "~ends"
TRASH_FOLDER = "~trash"
SPARE_FILE = "~spare"


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
    """Above what a name may have that is neither here nor in the log, where this record had to be rebuilt."""

    @classmethod
    def new(
        cls, name: TopicName, now_us: int, schema: pa.Schema | None, retention: RetentionSettings | None
    ) -> TopicRecord:
        return cls(name, str(uuid.uuid4()), now_us, schema, retention)

    def with_schema(self, schema: pa.Schema) -> TopicRecord:
        return replace(self, schema=schema)

    def with_retention(self, retention: RetentionSettings | None) -> TopicRecord:
        return replace(self, retention=retention)

    def with_first_offset(self, first_offset: int) -> TopicRecord:
        return replace(self, first_offset=first_offset)

    def with_epochs(self, epochs: Mapping[str, int]) -> TopicRecord:
        return replace(self, epochs=epochs)

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
        self.size_bytes = 0
        self._empty_trash()
        for name, size_bytes in walk_topics(disk, folder):
            self._names.add(name)
            self.size_bytes += size_bytes
        self._ends: dict[str, Any] = read_record(disk, folder / ENDS_FILE) or {}

    def __contains__(self, name: TopicName) -> bool:
        return name in self._names

    def names(self) -> set[TopicName]:
        return set(self._names)

    def folder(self, name: TopicName) -> Path:
        return topic_folder(self._folder, name)

    def create(self, record: TopicRecord) -> None:
        """Durable when it returns: a crash before leaves a folder without a record, which is no topic."""
        self._disk.make_folder(self.folder(record.name))
        self._write(record)
        self._names.add(record.name)

    def update(self, name: TopicName, change: Callable[[TopicRecord], TopicRecord]) -> None:
        """Replace a topic's record by what `change` makes of it, one at a time."""
        with self._updating:
            self._write(change(self.read(name)))

    def _write(self, record: TopicRecord) -> None:
        path = self.folder(record.name) / TOPIC_FILE
        try:
            write_record(self._disk, path, record.as_content())
        except DiskFull:
            if not self._spare.give_up():
                raise
            write_record(self._disk, path, record.as_content())

    def read(self, name: TopicName) -> TopicRecord:
        return read_topic_record(self._disk, self._folder, name)

    def delete(self, name: TopicName) -> int:
        """Move the folder out of sight in one step, then remove it; returns the bytes of its segments.

        What `~ends` says of it goes first: a crash in between must not leave a topic that looks lost.
        """
        self._forget_ends(name)
        folder = self.folder(name)
        size = sum(entry.size_bytes for entry in self._disk.list(folder) if entry.name.endswith(SUFFIX))
        trash = self._folder / TRASH_FOLDER
        self._disk.make_folder(trash)
        self._disk.rename(folder, trash / str(uuid.uuid4()))
        self._disk.sync_folder(folder.parent)
        self._disk.sync_folder(trash)
        self._names.discard(name)
        self._empty_trash()
        return size

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
            self._ends.update(changed)
            write_record(self._disk, self._folder / ENDS_FILE, self._ends)
            self._spare.keep()

    def _forget_ends(self, name: TopicName) -> None:
        kept = {log_id: known for log_id, known in self._ends.items() if known.get("topic") != str(name)}
        if len(kept) < len(self._ends):
            write_record(self._disk, self._folder / ENDS_FILE, kept)
            self._ends = kept

    def _empty_trash(self) -> None:
        trash = self._folder / TRASH_FOLDER
        if not any(entry.name == TRASH_FOLDER for entry in self._disk.list(self._folder)):
            return
        doomed = self._disk.list(trash)
        if doomed:
            self._disk.sync_folder(trash)  # left by a killed process: else a topic could come back without its files
        for folder in doomed:
            for entry in self._disk.list(trash / folder.name):
                self._disk.remove(trash / folder.name / entry.name)
            self._disk.remove_folder(trash / folder.name)


class TopicRecorder:
    """Changes to the record of one topic, each durable when it returns, for the log that must not forget them."""

    def __init__(self, catalog: TopicCatalog, name: TopicName) -> None:
        self._catalog = catalog
        self._name = name

    def record_first(self, offset: int) -> None:
        self._catalog.update(self._name, lambda record: record.with_first_offset(offset))

    def record_epochs(self, epochs: Mapping[str, int]) -> None:
        self._catalog.update(self._name, lambda record: record.with_epochs(epochs))


def read_topic_record(disk: Disk, folder: Path, name: TopicName) -> TopicRecord:
    """What a topic is, or `CorruptLog`."""
    path = topic_folder(folder, name) / TOPIC_FILE
    content = read_record(disk, path)
    if content is None:
        raise CorruptLog(str(path), 0, "the topic's record is missing, but there are segments")
    record = TopicRecord.from_content(path, content)
    if record.name != name:
        raise CorruptLog(str(path), 0, f"this record belongs to {record.name}")
    return record

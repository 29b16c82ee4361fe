"""Make the folder of a topic that goes on behind rows stored elsewhere: the disk that had them is lost, or another's.

    {log folder}/~adopting/{log id}      the folder while it is made; renamed to its place once it is whole

The log begins at `AdoptedLog.end` with an empty segment, whose schema frame has the producers as of that offset. So
offsets, sequences and append times go on. A crash leaves the whole topic or none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import LogFailed
from frazil.core.names import TopicName
from frazil.core.rows import stored_schema
from frazil.core.settings import AckLevel, RetentionSettings, WalSettings
from frazil.log.folder.layout import TOPIC_FILE
from frazil.log.format.frames import SegmentHead
from frazil.log.format.records import temporary_disk_errors, write_record
from frazil.log.retention.dropped import DroppedRange
from frazil.log.write.acks import sync_mode_of
from frazil.log.write.disk_budget import DiskBudget
from frazil.log.write.producers import Producers, ProducersRecord, above_unseen, next_generation
from frazil.log.write.segment import SegmentWriter, SyncFailed

ADOPTING_FOLDER = "~adopting"

_log = logging.getLogger("frazil.log")


@dataclass(frozen=True, slots=True)
class AdoptedLog:
    """Where a log goes on. Its rows below `end` are stored elsewhere."""

    log_id: str
    end: int
    schema: pa.Schema | None
    """The columns of a typed topic; None for a message topic."""
    producers: Producers
    """The state of the producers at `end`, by the stored rows."""
    last_time_us: int
    """The append time of the last row: no later row is older."""
    created_us: int
    retention: RetentionSettings | None = None
    taken: ProducersRecord | None = None
    """The names that were taken, as in the topic's record. None if they are not known: then each name gets an epoch
    above all that it may have had, and its clients must open their producers again."""

    ack: AckLevel = AckLevel.DISK
    dropped: tuple[DroppedRange, ...] = ()
    """Rows that retention has removed, and that no table holds."""

    @property
    def producers_record(self) -> ProducersRecord:
        return _above_all(self.producers) if self.taken is None else self.taken


def _above_all(producers: Producers) -> ProducersRecord:
    """Clients may have taken names without writing since: none of their epochs may be given to another client."""
    epochs = {name: above_unseen(epoch) for name, epoch in producers.epochs().items()}
    return ProducersRecord(epochs, {}, next_generation(max([producers.floor, *epochs.values()])))


def build_adopted(
    disk: Disk,
    settings: WalSettings,
    budget: DiskBudget,
    folder: Path,
    name: TopicName,
    adopted: AdoptedLog,
    record: dict[str, Any],
) -> Path:
    """Build the topic's folder apart, durably, and return it. `record` is the content of its `topic.json`."""
    built = folder / ADOPTING_FOLDER / adopted.log_id
    remove_unfinished_adoptions(disk, folder)
    disk.make_folder(built)
    head = SegmentHead(adopted.log_id, str(name), sync_mode_of(settings, adopted.ack), stored_schema(adopted.schema))
    producers = adopted.producers.as_text()
    try:
        writer = SegmentWriter.create(disk, budget, built, adopted.end, head, settings.max_file_size, producers)
    except SyncFailed as error:
        raise LogFailed(str(name), str(error)) from error
    writer.park()
    try:
        write_record(disk, built / TOPIC_FILE, record)
    except BaseException:
        budget.give_back(writer.segment.allocated_bytes)
        raise
    return built


def put_in_place(disk: Disk, built: Path, place: Path, clear: Callable[[], None]) -> None:
    """Give a built folder its name, at once and durably. `clear` moves away what a crash has left at its place."""
    with temporary_disk_errors(place):
        disk.make_folder(place.parent)
        if any(entry.name == place.name for entry in disk.list(place.parent)):
            clear()
        disk.rename(built, place)
        disk.sync_folder(place.parent)
        disk.sync_folder(built.parent)


def remove_unfinished_adoptions(disk: Disk, folder: Path) -> None:
    """Remove what a crash has left of an adoption. A failure is harmless: it is repeated by the next one."""
    adopting = folder / ADOPTING_FOLDER
    try:
        if any(entry.name == ADOPTING_FOLDER for entry in disk.list(folder)):
            for built in disk.list(adopting):
                for entry in disk.list(adopting / built.name):
                    disk.remove(adopting / built.name / entry.name)
                disk.remove_folder(adopting / built.name)
            disk.remove_folder(adopting)
            disk.sync_folder(folder)
    except OSError as error:
        _log.warning("%s is not removed yet, and is retried: %s", adopting, error)

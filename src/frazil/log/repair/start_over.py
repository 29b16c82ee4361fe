"""A log with ack level `object` whose files are behind its objects, or have other rows: the store is right.

    1. Segments with rows that are not those of the store are copied to `.aside` files, for people.
    2. The topic's record says where the files begin: at the end of the objects.
    3. A new segment begins there, with the producers as of that offset.
    4. The other segments are removed; recovery does so too after a crash.

A crash in between leaves a log that is opened the same way again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from frazil.core.disk import Disk
from frazil.core.names import TopicName
from frazil.core.rows import stored_schema
from frazil.core.settings import SyncMode, WalSettings
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.folder.catalog import TopicRecorder
from frazil.log.format.frames import SegmentHead
from frazil.log.format.records import open_to_read, temporary_disk_errors, write_new
from frazil.log.repair.recovery import unused_name
from frazil.log.write.disk_budget import DiskBudget
from frazil.log.write.segment import Segment, SegmentWriter
from frazil.log.write.stored_groups import GroupStore

ASIDE_SUFFIX = ".aside"

_log = logging.getLogger("frazil.log")


def first_false(store: GroupStore, segments: Sequence[Segment], end: int, epoch: int) -> int | None:
    """Return the first offset of the files whose row is not that of the store; None if all of them are."""
    if not segments or segments[0].base >= end:
        return None
    others = store.first_of_others(segments[0].base, epoch)
    return others if others is not None and others < end else None


def start_over(
    disk: Disk,
    budget: DiskBudget,
    settings: WalSettings,
    folder: Path,
    name: TopicName,
    recorder: TopicRecorder,
    segments: Sequence[Segment],
    false_from: int | None,
    goes_on: AdoptedLog,
) -> None:
    """Make the files go on where the objects end. `false_from` is the first of their rows that is not the store's."""
    with temporary_disk_errors(folder):
        if false_from is not None:
            _keep_aside(disk, folder, segments, false_from)
        schema = recorder.record_start_over(goes_on.end, goes_on.last_time_us, goes_on.schema)
        head = SegmentHead(goes_on.log_id, str(name), SyncMode.NONE, stored_schema(schema))
        producers = goes_on.producers.as_text()
        SegmentWriter.create(disk, budget, folder, goes_on.end, head, settings.max_file_size, producers).park()
        for segment in segments:
            if segment.base != goes_on.end:  # that one was replaced
                disk.remove(segment.path)
                disk.sync_folder(folder)
            budget.give_back(segment.allocated_bytes)
    _log.warning("%s: its files go on at offset %d, behind its objects", name, goes_on.end)


def _keep_aside(disk: Disk, folder: Path, segments: Sequence[Segment], false_from: int) -> None:
    """Copy all segments that have such rows, durably."""
    for at, segment in enumerate(segments):
        if at + 1 < len(segments) and segments[at + 1].base <= false_from:
            continue
        file = open_to_read(disk, segment.path)
        try:
            content = file.read(segment.used_bytes, 0)
        finally:
            file.close()
        aside = unused_name(disk, segment.path, max(0, false_from - segment.base), ASIDE_SUFFIX)
        write_new(disk, aside, bytes(content))
        _log.error("rows from offset %d of %s are not those of the object store; kept in %s", false_from, folder, aside)
    disk.sync_folder(folder)

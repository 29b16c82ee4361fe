"""Make a data folder again whose disk is lost: every log goes on behind its objects, or behind its table.

The order leaves a state that the next call continues after a crash at any point: first `~restoring` says that the
folder is being restored, then each log is taken over in the object store and gets its folder, whole or not at all; the
record is removed last.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from frazil.core.clock import Clock, SystemClock
from frazil.core.disk import Disk, LocalDisk
from frazil.core.errors import InvalidSettings, RestoreRefused
from frazil.core.names import TopicName
from frazil.core.settings import Settings
from frazil.lake.read.history import TableHistories, TableHistory
from frazil.log.folder.identity import FOLDER_FILE
from frazil.log.folder.layout import topic_names
from frazil.log.format.records import read_record, write_record
from frazil.log.storage import Storage, open_storage
from frazil.node.movers.lease import this_host
from frazil.node.renumber.cursors import cursors_above, lower_cursors
from frazil.node.restore.behind_table import behind_table, end_in_tables
from frazil.node.restore.stored_logs import StoredLog, TopicRecords, log_ids, read_records, stored_logs
from frazil.node.tiers.objects import open_object_logs
from frazil.objects.acks import AckedLogs
from frazil.objects.epoch import EpochClaim, begin_epoch
from frazil.objects.known import ObjectsOfLogs
from frazil.objects.recovery import continuation

RESTORING_FILE = "~restoring"

Begin = Callable[[str, int], Callable[[int], None]]
"""Called with a label and the number of logs; the returned function is called with progress."""


@dataclass(frozen=True, slots=True)
class RestoredLog:
    """One log that is restored, or would be."""

    topic: str
    log_id: str
    first_offset: int
    """The first offset that objects hold."""
    objects_end: int
    table_end: int
    """The furthest end of the log in its tables; 0 if there is none."""
    objects: int
    size_bytes: int
    was_there: bool = False
    """Whether an earlier call has restored it."""

    @property
    def end(self) -> int:
        """Where the log goes on."""
        return max(self.objects_end, self.table_end)

    def as_dict(self) -> dict[str, Any]:
        names = ("topic", "log_id", "first_offset", "objects_end", "table_end", "end", "objects", "size_bytes")
        return {**{name: getattr(self, name) for name in names}, "was_there": self.was_there}


@dataclass(frozen=True, slots=True)
class LeftOut:
    """A log that is not restored, and why."""

    log_id: str
    topic: str | None
    reason: str

    def as_dict(self) -> dict[str, Any]:
        return {"log_id": self.log_id, "topic": self.topic, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Restored:
    """What was done, or would be in a dry run."""

    dry_run: bool
    logs: tuple[RestoredLog, ...]
    left_out: tuple[LeftOut, ...]

    def as_dict(self) -> dict[str, Any]:
        return {
            "dry_run": self.dry_run,
            "logs": [one.as_dict() for one in self.logs],
            "left_out": [one.as_dict() for one in self.left_out],
        }


def restore(
    settings: Settings,
    *,
    dry_run: bool = False,
    leave_out: Collection[str] = (),
    begin: Begin = lambda _what, _count: lambda _done: None,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Restored:
    """Restore all logs that the object store has. `leave_out` are ids of logs that are not to be restored.

    Raises `RestoreRefused` if the folder has topics, or it is not clear which log is whose; `ObjectDamaged` for an
    object that is missing or damaged.
    """
    if not settings.objects.enabled:
        raise InvalidSettings("objects.enabled: it must be true, and `objects` name the store that has the logs")
    if settings.cluster.enabled:
        raise InvalidSettings("cluster.enabled: a broker of a cluster takes its topics over by itself; start it")
    disk = disk or LocalDisk()
    _check_folder(settings, disk)
    with open_object_logs(settings) as objects:
        assert objects is not None
        return _Restore(settings, objects, disk, clock or SystemClock(), begin).run(frozenset(leave_out), dry_run)


def _check_folder(settings: Settings, disk: Disk) -> None:
    """Refuse a folder with topics, unless an earlier call was interrupted."""
    folder = settings.log_folder
    there = topic_names(disk, folder)
    if there and read_record(disk, folder / RESTORING_FILE) is None:
        raise RestoreRefused(
            f"{folder} has topics, for example {there[0]}: restore into a new folder, which --data names"
        )


class _Restore:
    def __init__(self, settings: Settings, objects: ObjectsOfLogs, disk: Disk, clock: Clock, begin: Begin) -> None:
        self._settings = settings
        self._objects = objects
        self._disk = disk
        self._clock = clock
        self._begin = begin
        self._histories = TableHistories(settings)
        self._claim = EpochClaim(f"frazil restore on {this_host()}")

    def run(self, leave_out: frozenset[str], dry_run: bool) -> Restored:
        records = read_records(None if self._objects.manifests is None else self._objects.manifests.meta)
        ids = [one for one in log_ids(self._objects, records) if one not in leave_out]
        advance = self._begin("looking for logs", len(ids))
        logs, left_out = [], []
        for log in stored_logs(self._objects, records, ids):
            advance(1)
            if (why := _why_left_out(log, records)) is not None:
                left_out.append(LeftOut(log.log_id, None if log.topic is None else str(log.topic), why))
            else:
                logs.append(log)
        _check_topics(logs)
        found = sorted(((log, self._planned(log)) for log in logs), key=lambda each: each[1].topic)
        if not dry_run:
            with open_storage(self._settings, disk=self._disk, clock=self._clock, groups_of=self._acks) as storage:
                found = self._carry_out(storage, found, records)
        return Restored(dry_run, tuple(one for _, one in found), tuple(left_out))

    # --- the plan

    def _planned(self, log: StoredLog) -> RestoredLog:
        objects, history = log.loaded.objects, self._history(log)
        table_end = 0 if history is None else end_in_tables(history)
        first = objects[0].first if objects else log.loaded.end
        size = sum(one.size_bytes for one in objects)
        return RestoredLog(str(log.topic), log.log_id, first, log.loaded.end, table_end, len(objects), size)

    def _history(self, log: StoredLog) -> TableHistory | None:
        assert log.topic is not None
        return self._histories.of(log.topic, log.log_id)

    # --- execution

    def _carry_out(
        self, storage: Storage, logs: Iterable[tuple[StoredLog, RestoredLog]], records: TopicRecords
    ) -> list[tuple[StoredLog, RestoredLog]]:
        logs, marker = list(logs), storage.settings.log_folder / RESTORING_FILE
        there = {name: storage.record(name).log_id for name in storage.topics()}
        _check_folder(self._settings, self._disk)
        for _, one in logs:
            if there.get(one.topic, one.log_id) != one.log_id:
                raise RestoreRefused(f"{one.topic} is in {marker.parent} as another log, {there[one.topic]}")
        write_record(self._disk, marker, {"logs": len(logs)})
        self._take_folder_id(records)
        advance = self._begin("restoring", len(logs))
        done = []
        for log, one in logs:
            if one.topic in there:
                done.append((log, replace(one, was_there=True)))
            else:
                done.append((log, self._restored(storage, log, one)))
            advance(1)
        self._disk.remove(marker)
        self._disk.sync_folder(marker.parent)
        return done

    def _restored(self, storage: Storage, log: StoredLog, one: RestoredLog) -> RestoredLog:
        """Take the log over in the store first: from then on no former owner moves its end."""
        assert log.topic is not None
        known = self._objects.of(log.log_id)
        epoch = begin_epoch(known, one.topic, self._claim, self._clock, first=one.table_end or None)
        objects, end = epoch.objects.all(), max((each.end for each in epoch.objects.all()), default=0)
        adopted = continuation(self._objects.store, log.log_id, objects, max(epoch.first, end), log.stated)
        if one.table_end > end:
            history = self._history(log)
            assert history is not None
            adopted = behind_table(history, adopted, one.table_end)
        if cursors_above(self._settings, log.topic, adopted.end):
            lower_cursors(self._settings, log.topic, adopted.end)  # else rows that come there now were never delivered
        storage.adopt_topic(one.topic, adopted)
        return replace(one, objects_end=max(one.objects_end, end))

    def _acks(self) -> AckedLogs:
        return AckedLogs(self._settings.objects, lambda: self._objects, lambda: self._claim, self._clock)

    def _take_folder_id(self, records: TopicRecords) -> None:
        """The metadata store belongs to the folder that is lost: this one takes its place."""
        path = (self._settings.data or self._settings.log_folder) / FOLDER_FILE
        if records.folder_id is not None and read_record(self._disk, path) is None:
            write_record(self._disk, path, {"id": records.folder_id})


def _why_left_out(log: StoredLog, records: TopicRecords) -> str | None:
    if records.logs and log.log_id not in records.logs:
        return "no topic of the metadata store has this log: its topic was deleted or created again"
    if log.is_empty:
        return "none of its rows was uploaded"
    if log.is_deleted:
        return "its first fence is missing: its topic was deleted, and the removal of its objects was interrupted"
    return None


def _check_topics(logs: Iterable[StoredLog]) -> None:
    """Each log must name a topic, and no two the same."""
    unnamed, by_name = [], dict[TopicName, str]()
    for log in logs:
        if log.topic is None:
            unnamed.append(log.log_id)
        elif (other := by_name.setdefault(log.topic, log.log_id)) != log.log_id:
            raise RestoreRefused(
                f"{log.topic} is the topic of two logs in the store, {other} and {log.log_id}: it was created again; "
                "name the one that is not to be restored with --leave-out"
            )
    if unnamed:
        raise RestoreRefused(
            f"nothing in the store says of which topics these logs are: {', '.join(unnamed)}; leave them out with "
            "--leave-out"
        )

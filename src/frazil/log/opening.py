"""Open the log of a topic: recover its files, and take its objects over if its acknowledgements wait for them."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

from frazil.core.disk import Disk
from frazil.core.errors import InvalidInput, ObjectDamaged, TryLater
from frazil.core.names import TopicName
from frazil.core.settings import AckLevel, RetentionSettings, Settings
from frazil.log.context import LogContext
from frazil.log.folder.adoption import AdoptedLog
from frazil.log.folder.catalog import TopicCatalog, TopicRecord, TopicRecorder
from frazil.log.folder.reading_disk import NotAtOnce
from frazil.log.format.records import temporary_disk_errors
from frazil.log.object_log import ObjectLog
from frazil.log.repair.recovery import Recovered, recover
from frazil.log.repair.start_over import first_false, start_over
from frazil.log.topic_log import TopicLog
from frazil.log.write.stored_groups import GroupStore, GroupStores

_log = logging.getLogger("frazil.log")


class LogOpener:
    def __init__(
        self, settings: Settings, context: LogContext, catalog: TopicCatalog, groups: GroupStores | None
    ) -> None:
        self._settings = settings
        self._context = context
        self._catalog = catalog
        self._groups = groups

    def take_over(self, name: TopicName) -> None:
        """Take over the objects of a topic that is to be opened; does nothing at other ack levels.

        It sends requests: callers hold no lock. Raises `ObjectStoreUnavailable`.
        """
        record = self._catalog.read(name)
        if _has_objects(record):
            self._stores(record).take_over(record.log_id, name, record.first_offset)

    def take_over_adopted(self, name: TopicName, log: AdoptedLog) -> None:
        if log.ack is AckLevel.OBJECT and self._groups is not None:
            self._groups.take_over(log.log_id, name, log.end)

    def open(self, name: TopicName, disk: Disk) -> TopicLog:
        """Open a log whose objects were taken over."""
        record = self._catalog.read(name)
        if record.ack is AckLevel.OBJECT:
            if disk is not self._context.disk:
                raise NotAtOnce
            return self._object_log(name, record)
        return TopicLog(self._context, *self._recovered(name, record, disk))

    def release(self, log_id: str) -> None:
        if self._groups is not None:
            self._groups.release(log_id)

    def close(self) -> None:
        if self._groups is not None:
            self._groups.close()

    def _stores(self, record: TopicRecord) -> GroupStores:
        if self._groups is None:
            why = "its rows are acknowledged by the object store: open the folder with objects.enabled: true"
            raise InvalidInput(f"{record.name}: {why}", field="objects.enabled")
        return self._groups

    def _object_log(self, name: TopicName, record: TopicRecord) -> ObjectLog:
        stores, store, recorder = self._stores(record), None, TopicRecorder(self._catalog, name)
        place = self._recovered(name, record, self._context.disk)
        if _has_objects(record):
            store = stores.taken(record.log_id)
            if store is None:
                raise TryLater(f"{name} is being made or deleted; try again")
            if self._starts_over(place[1], place[3], record, store, recorder):
                record = self._catalog.read(name)
                place = self._recovered(name, record, self._context.disk)
            recorder.record_object_epoch(store.epoch)
        log = ObjectLog(self._context, *place, stores, store)
        log.start()
        return log

    def _starts_over(
        self, folder: Path, recovered: Recovered, record: TopicRecord, store: GroupStore, recorder: TopicRecorder
    ) -> bool:
        """Let the log continue after its objects if the files differ from them; returns whether they did."""
        known, end = self._catalog.end_of(record.log_id), store.end
        if end < known:
            why = f"the objects end at offset {end}, but rows up to {known} were stored: is it the right object store?"
            raise ObjectDamaged(record.log_id, 0, why)
        false_from = first_false(store, recovered.segments, recovered.end, record.object_epoch)
        if false_from is None and recovered.end > end and 0 < record.object_epoch < store.epoch - 1:
            false_from = end  # another process had the log: these rows were answered as refused or unknown
        if false_from is None and recovered.end >= end:
            return False
        context = self._context
        place = context.disk, context.budget, context.settings, folder, record.name, recorder
        start_over(*place, recovered.segments, false_from, store.continuation())
        return True

    def _recovered(
        self, name: TopicName, record: TopicRecord, disk: Disk
    ) -> tuple[TopicRecord, Path, RetentionSettings, Recovered, TopicRecorder]:
        folder = self._catalog.folder(name)
        # With objects the files are never synced: what they lost is in the store.
        durable = 0 if record.ack is AckLevel.OBJECT else self._catalog.end_of(record.log_id)
        with temporary_disk_errors(folder):
            recovered = recover(disk, folder, record.log_id, record.first_offset, durable)
        self._context.budget.give_back(recovered.removed_bytes)
        if recovered.torn is not None:
            _log.warning("%s: %s", name, recovered.torn)
        retention = record.retention or self._settings.wal.retention
        recovered.producers.learn(record.producers)
        recovered = replace(recovered, last_time_us=max(recovered.last_time_us, record.last_time_us))
        return record, folder, retention, recovered, TopicRecorder(self._catalog, name)


def _has_objects(record: TopicRecord) -> bool:
    """Whether a topic may have objects: a new one is taken over with its first rows."""
    return record.ack is AckLevel.OBJECT and bool(record.object_epoch or record.first_offset)

"""A guard that allows removal only of rows in the table, checked in the catalog at the moment of deletion.

The mover's reports are never trusted here. A table that cannot outlive its process protects nothing, and a catalog that
this process does not know or cannot reach keeps everything.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.core.disk import Disk
from frazil.core.errors import DiskFull, LakeUnavailable, TableAhead
from frazil.core.extras import needs
from frazil.core.offsets import OffsetRange
from frazil.core.settings import Settings
from frazil.core.settings.lake import CatalogType, ObjectStoreType
from frazil.log.read.ranges import read_range
from frazil.log.topic_log import TopicLog
from frazil.node.retention.moved import MovedFolder, catalog_name, check_catalog, mark_moved

if TYPE_CHECKING:  # importing PyIceberg takes a second, and most users of a folder never remove a row
    from frazil.lake.tables.ends import CommittedEnds

_log = logging.getLogger("frazil.log")


def kept_in_memory(settings: Settings) -> str | None:
    """Return the setting that keeps tables, or their files, in the memory of one process."""
    if settings.catalog.type is CatalogType.MEMORY:
        return "catalog.type"
    if settings.object_store.type is ObjectStoreType.MEMORY:
        return "object_store.type"
    return None


def names_a_lake(settings: Settings) -> bool:
    """Whether the settings say where tables are or how rows get there; a folder alone says neither."""
    return settings.pipeline.enabled and bool(settings.model_fields_set & {"catalog", "object_store", "pipeline"})


class TableGuard:
    """`moves` is for a process that has a mover, or should have one, even if Java is missing.

    In any other process a topic has a table to wait for if the settings name a lake or the topic, or if the folder was
    ever moved. A topic with `enabled: false` has none.
    """

    name = "table"
    holds_rows = True

    def __init__(self, settings: Settings, disk: Disk, *, moves: bool) -> None:
        self._settings = settings
        self._disk = disk
        self._moves = moves
        self._always = moves or names_a_lake(settings)
        self._folder = MovedFolder(settings, disk)
        self._lock = threading.Lock()
        self._ends: CommittedEnds | None = None
        if moves:
            self._mark()
        if self._always and (setting := kept_in_memory(settings)) is not None:
            _log.warning("%s: memory: tables end with their process, so retention removes no moved row", setting)

    def concerns(self, log: TopicLog) -> bool:
        rules = self._settings.of_topic(log.name)
        return rules.enabled and (self._always or bool(rules.key) or self._folder.is_moved())

    def floor(self, log: TopicLog) -> int:
        """Return the committed end of exactly this log; raises `TableAhead` if that is above the log's own end, or if
        the log was set back and has another row there."""
        self._check_catalog()
        with self._lock:
            committed = self._committed()
            end, log_end = committed.end(log.name, log.log_id), log.durable_end
            ahead = end > log_end
            if not ahead and end > log.first_offset:
                ahead = not committed.continues(log.name, log.log_id, self._row(log, end - 1))
        if ahead:
            raise TableAhead(str(log.name), committed.table(log.name), end, log_end)
        return end

    def _row(self, log: TopicLog, offset: int) -> pa.RecordBatch:
        files = [(segment.base, segment.path) for segment in log.segments]
        return next(read_range(self._disk, log.log_id, files, OffsetRange(offset, offset + 1), log.schema))

    def close(self) -> None:
        with self._lock:
            if self._ends is not None:
                self._ends.close()

    def _check_catalog(self) -> None:
        setting = kept_in_memory(self._settings)
        if setting is not None:
            reason = "memory: its tables end with their process, so nothing is removed on their account"
            raise LakeUnavailable(setting, reason, "set a catalog and a store that stay, or `enabled: false`")
        if self._moves:
            self._mark()
            return
        check_catalog(self._settings, self._disk)

    def _mark(self) -> None:
        """A full disk does not prevent opening a folder: it is retried before rows are removed."""
        try:
            mark_moved(self._settings, self._disk, catalog_name(self._settings))
        except DiskFull as error:
            _log.warning("that rows are moved could not be recorded: %s", error)

    def _committed(self) -> CommittedEnds:
        if self._ends is None:
            with needs():
                from frazil.lake.tables.ends import CommittedEnds
            self._ends = CommittedEnds(self._settings)
        return self._ends

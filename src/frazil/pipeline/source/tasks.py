"""A task of the Spark source: read its range from wherever the rows are by now."""

from __future__ import annotations

import functools
import logging
import pickle
import sys
import zipimport
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from frazil.core.errors import FrazilError
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.rows import OFFSET
from frazil.core.settings import Settings
from frazil.core.stored_objects import StoredObject
from frazil.core.tiers import ContiguousBatches, Extent, Gone, Tier, TierBatches, TierWalk
from frazil.lake.read.history import TableHistories
from frazil.log.folder.identity import FolderMark
from frazil.log.info import LogInfo
from frazil.node.tiers.logs import open_view, read_anywhere
from frazil.node.tiers.objects import task_objects
from frazil.pipeline.source.columns import projection
from frazil.pipeline.source.planning import lost
from frazil.pipeline.source.ranges import Files, SourceRange, held_by

LOOKS_MAX = 3

_log = logging.getLogger("frazil.pipeline")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """Everything a task needs besides its range. It contains secrets: send it to tasks, never to a log."""

    settings: Settings
    columns: pa.Schema
    fail_on_data_loss: bool


def read_source(work: TaskSettings, one: SourceRange) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the range in the columns that Spark requested, in order."""
    stored = pa.ipc.read_schema(pa.py_buffer(one.stored_schema))
    made = projection(work.columns, stored, one.topic)
    try:
        for batch in _RangeReader(work, one, stored, made.needed).rows():
            yield made.rows(batch, one.topic, one.partition)
    finally:
        forget_zip_importers()


class _RangeReader:
    """Continues where the last batch ended. A segment that was moved and removed is found in the table, and rows that
    the table no longer has, in the log; each look sees the current state of both."""

    def __init__(self, work: TaskSettings, one: SourceRange, stored: pa.Schema, needed: pa.Schema) -> None:
        self._work = work
        self._one = one
        self._log = _LogNow(work.settings, one, stored, needed)
        table = _Table(work, one, needed)
        tiers: list[Tier] = [table, self._log]
        if not one.in_table:
            tiers.insert(0, _PlannedFiles(self._log))
        self._walk = TierWalk(tiers, one.range.start, one.range.end)

    def rows(self) -> Iterator[pa.RecordBatch]:
        looks, walk = 0, self._walk
        try:
            while not walk.finished:
                before = walk.offset
                try:
                    batch = walk.step()
                except Gone:
                    looks = looks + 1 if walk.offset == before else 0
                    if looks == LOOKS_MAX:  # what moves between two looks is found by the next
                        self._skip_or_raise()
                        looks = 0
                    continue
                looks = 0
                if batch is not None:
                    yield batch
        finally:
            walk.close()

    def _skip_or_raise(self) -> None:
        """The rows are in no table; whether they are lost is for their log to say."""
        info, at, end = self._log.info, self._walk.offset, self._one.range.end
        has_it = info is None or info.held_from <= at < info.durable_end
        if has_it and self._log.trouble is not None:
            raise self._log.trouble
        if info is not None:
            info.check_objects()
        until = info.held_from if info is not None and at < info.held_from < end else end
        lost(self._one.log, OffsetRange(at, until), self._work.fail_on_data_loss)
        self._walk.offset = until


class _TaskTier:
    """A tier of which a task reads the ranges that its driver has planned."""

    is_in_memory = False

    def may_hold(self, offset: int) -> bool:  # noqa: ARG002 - only a read shows it
        return True

    def extent(self) -> Extent | None:
        return None

    def find(self, time_us: int) -> int | None:  # noqa: ARG002 - the driver has found it
        return None


class _Table(_TaskTier):
    """The table: for the first look as the driver saw it, then as it is."""

    def __init__(self, work: TaskSettings, one: SourceRange, needed: pa.Schema) -> None:
        self._work = work
        self._one = one
        self._needed = needed
        self._plan = one.plan

    def batches(self, wanted: OffsetRange) -> TierBatches:
        history = _histories(pickle.dumps(self._work.settings)).of(TopicName.parse(self._one.log), self._one.log_id)
        if history is None:
            raise Gone(wanted.start)
        plan, self._plan = self._plan, None
        given = None if plan is None else plan.unpacked()
        skips = not self._work.fail_on_data_loss
        return history.read(wanted.start, wanted.end, self._needed, given, skips_missing=skips)


class _LogNow(_TaskTier):
    """The log as it is at each look. `info` is None if it was deleted, or can't be seen from here.

    It gives as far as it goes; what stopped it is `trouble`, raised only if the rows are nowhere else.
    """

    def __init__(self, settings: Settings, one: SourceRange, stored: pa.Schema, needed: pa.Schema) -> None:
        self._settings = settings
        self._stored = stored
        self._names = [OFFSET.name, *needed.names]
        self.one = one
        self.info: LogInfo | None = None
        self.trouble: Exception | None = None

    def batches(self, wanted: OffsetRange) -> TierBatches:
        with open_view(self._settings, self.one.owner, self.one.credentials) as view:
            self.info = next((info for info in view.logs() if info.log_id == self.one.log_id), None)
        info = self.info
        if info is None or not info.held_from <= wanted.start < info.durable_end:
            raise Gone(wanted.start)
        return self.read(
            info.files, info.objects, info.folder, OffsetRange(wanted.start, min(wanted.end, info.durable_end))
        )

    def read(
        self, files: Files, objects: tuple[StoredObject, ...], folder: FolderMark | None, wanted: OffsetRange
    ) -> TierBatches:
        return ContiguousBatches(self._rows(files, objects, folder, wanted), wanted.start)

    def _rows(
        self, files: Files, objects: tuple[StoredObject, ...], folder: FolderMark | None, wanted: OffsetRange
    ) -> Iterator[pa.RecordBatch]:
        one, at = self.one, wanted.start
        place = (one.owner, one.log, one.log_id, held_by(files, wanted), wanted, self._stored, folder)
        try:
            for batch in read_anywhere(*place, one.credentials, task_objects(self._settings, objects, wanted)):
                at += batch.num_rows
                yield batch.select(self._names)
        except (FrazilError, OSError, pa.ArrowException) as error:
            _log.info("%s cannot be read on from offset %d in its log: %s", one.log, at, error)
            self.trouble = error
            raise Gone(at) from error


class _PlannedFiles(_TaskTier):
    """The segments that the driver saw, read once: it saves a look at the log."""

    def __init__(self, log: _LogNow) -> None:
        self._log = log
        self._is_unread = True

    def may_hold(self, offset: int) -> bool:  # noqa: ARG002 - it is asked for the whole range, and once
        return self._is_unread

    def batches(self, wanted: OffsetRange) -> TierBatches:
        self._is_unread = False
        one = self._log.one
        return self._log.read(one.files, one.objects, one.folder, wanted)


def forget_zip_importers() -> None:
    """Before each task Spark invalidates every importer's cache, and each of the dozens for a package in Spark's zip
    file reads its whole directory: a quarter of a second. They are recreated when needed."""
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)


@functools.lru_cache(maxsize=4)
def _histories(settings: bytes) -> TableHistories:
    """Opened once per worker, however many tasks it runs."""
    found: Settings = pickle.loads(settings)  # noqa: S301 - made by our own driver
    return TableHistories(found)

"""What a task of the Spark source does: read its range from wherever the rows are by now."""

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
from frazil.lake.history import TableHistories
from frazil.log.folder_mark import FolderMark
from frazil.log.info import LogInfo
from frazil.pipeline.spark_columns import projection
from frazil.pipeline.spark_look import lost
from frazil.pipeline.spark_ranges import Files, SourceRange, held_by
from frazil.topics.logs import open_view, read_anywhere

LOOKS_MAX = 3

_log = logging.getLogger("frazil.pipeline")


@dataclass(frozen=True, slots=True)
class TaskSettings:
    """All that a task needs beside its range. It holds secrets: it goes to tasks, never to a log."""

    settings: Settings
    columns: pa.Schema
    fail_on_data_loss: bool


def read_source(work: TaskSettings, one: SourceRange) -> Iterator[pa.RecordBatch]:
    """The rows of the range in the columns that Spark asked for, in order."""
    stored = pa.ipc.read_schema(pa.py_buffer(one.stored_schema))
    made = projection(work.columns, stored, one.topic)
    try:
        for batch in _RangeReader(work, one, stored, made.needed).rows():
            yield made.rows(batch, one.topic, one.partition)
    finally:
        forget_zip_importers()


class _RangeReader:
    """Goes on where the last batch ended. A segment that was moved and removed is found in the table, and rows that
    the table no longer has, in the log; each look is of both as they are now."""

    def __init__(self, work: TaskSettings, one: SourceRange, stored: pa.Schema, needed: pa.Schema) -> None:
        self._work = work
        self._one = one
        self._stored = stored
        self._needed = needed
        self._at = one.range.start
        self._end = one.range.end
        self._trouble: Exception | None = None
        self._plan = one.plan

    def rows(self) -> Iterator[pa.RecordBatch]:
        if not self._one.in_table:
            yield from self._from_log(self._one.files, self._one.folder)
        looks = 0
        while self._at < self._end:
            before = self._at
            yield from self._from_table()
            if self._at == self._end:
                return
            info = self._look()
            if info is not None and info.first_offset <= self._at < info.durable_end:
                yield from self._from_log(info.files, info.folder)
            looks = looks + 1 if self._at == before else 0
            if looks == LOOKS_MAX:  # what moves between two looks is found by the next
                self._skip_or_raise(info)
                looks = 0

    def _from_table(self) -> Iterator[pa.RecordBatch]:
        history = _histories(pickle.dumps(self._work.settings)).of(TopicName.parse(self._one.log), self._one.log_id)
        if history is None:
            return
        plan, self._plan = self._plan, None  # for the first look only: whatever comes after it sees the table of then
        given = None if plan is None else plan.unpacked()
        skips = not self._work.fail_on_data_loss
        reader = history.read(self._at, self._end, self._needed, given, skips_missing=skips)
        try:
            for batch in reader:
                self._at = reader.offset
                yield batch
            self._at = reader.offset
        finally:
            reader.close()

    def _from_log(self, files: Files, folder: FolderMark | None) -> Iterator[pa.RecordBatch]:
        """As far as it goes; what stopped it is told only if the rows are nowhere else."""
        one, wanted = self._one, OffsetRange(self._at, self._end)
        names = [OFFSET.name, *self._needed.names]
        try:
            for batch in read_anywhere(
                one.owner, one.log, one.log_id, held_by(files, wanted), wanted, self._stored, folder
            ):  # fmt: skip
                self._at += batch.num_rows
                yield batch.select(names)
        except (FrazilError, OSError, pa.ArrowException) as error:
            _log.info("%s cannot be read on from offset %d in its log: %s", one.log, self._at, error)
            self._trouble = error

    def _look(self) -> LogInfo | None:
        """The log as it is now; None if it was deleted, or can't be seen from here."""
        with open_view(self._work.settings, self._one.owner) as view:
            return next((info for info in view.logs() if info.log_id == self._one.log_id), None)

    def _skip_or_raise(self, info: LogInfo | None) -> None:
        """The rows are in no table; whether they are lost is for their log to say."""
        has_it = info is None or info.first_offset <= self._at < info.durable_end
        if has_it and self._trouble is not None:
            raise self._trouble
        until = self._end
        if info is not None and self._at < info.first_offset < self._end:
            until = info.first_offset
        lost(self._one.log, OffsetRange(self._at, until), self._work.fail_on_data_loss)
        self._at = until


def forget_zip_importers() -> None:
    """Before each task Spark has every importer look at its files anew, and each of the dozens for a package in
    Spark's own zip file reads the whole directory of that: a quarter of a second. They are made again when needed."""
    for path, importer in list(sys.path_importer_cache.items()):
        if isinstance(importer, zipimport.zipimporter):
            sys.path_importer_cache.pop(path, None)


@functools.lru_cache(maxsize=4)
def _histories(settings: bytes) -> TableHistories:
    """Opened once in a worker, however many tasks it runs."""
    found: Settings = pickle.loads(settings)  # noqa: S301 - made by our own driver
    return TableHistories(found)

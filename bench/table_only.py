"""Topics whose rows are only in their tables: moved by the product's own mover, then let go by the log."""

from __future__ import annotations

import os
from collections.abc import Sequence

import frazil
from frazil.core.clock import SystemClock
from frazil.core.settings import Settings
from frazil.lake.catalogs.opening import catalog_properties, open_catalog
from frazil.lake.tables.schema import table_of
from frazil.lake.tables.store import TableStore
from frazil.node.movers.log_source import OwnLogs
from frazil.pipeline.move.mover import Mover
from frazil.pipeline.move.plan import TASK_SHARE
from frazil.testing.jobs import InProcessJobs


def move_all(settings: Settings, storage: frazil.Storage, topic: frazil.Topic, file_bytes: int) -> list[str]:
    """Move all rows in files of so many bytes of Arrow, remove them from the log; returns the paths of the files."""
    (name, _), end = table_of(topic.log.name), topic.stats().end
    writer = settings.writer.model_copy(update={"max_memory_bytes": file_bytes * TASK_SHARE})
    properties, catalog = catalog_properties(settings), open_catalog(settings)
    tables = TableStore(catalog, properties.get("warehouse"), properties)
    own = settings.model_copy(update={"writer": writer})
    mover = Mover(own, OwnLogs(storage), tables, InProcessJobs(), SystemClock(), lambda _: None)
    while (report := mover.tick(all_of_it=True).topics[str(topic.log.name)]).table_end < end:
        assert report.error is None, report.error
    storage.set_retention(topic.name, frazil.RetentionSettings(age_ms=1))
    storage.maintain()
    assert topic.log.first_offset == end
    files = [task.file.file_path for task in catalog.load_table(name.identifier).scan().plan_files()]
    return [file.removeprefix("file://") for file in sorted(files)]


def make_cold(paths: Sequence[str]) -> None:
    """The files are no longer in the page cache, as far as their file system heeds it; no root is needed."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

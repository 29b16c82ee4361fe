"""Topics whose rows are only in their tables: written by the product's own files and commit, then let go by the log."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence

import frazil
from frazil.core.rows import stored_schema
from frazil.core.settings import Settings
from frazil.lake.catalog import catalog_properties, open_catalog
from frazil.lake.checksum import RowsChecksum
from frazil.lake.commit import Moved
from frazil.lake.files import DataFileWriter
from frazil.lake.store import TableStore
from frazil.lake.tables import table_of, table_rows


class _InTable:
    """Lets retention remove all rows: the table has them."""

    name = "table"
    holds_rows = True

    def __init__(self, end: int) -> None:
        self._end = end

    def concerns(self, _log: object) -> bool:
        return True

    def floor(self, _log: object) -> int:
        return self._end

    def close(self) -> None:
        pass


def move_all(settings: Settings, storage: frazil.Storage, topic: frazil.Topic, file_bytes: int) -> list[str]:
    """Move all rows in files of so many bytes of Arrow, remove them from the log; returns the paths of the files."""
    name, partition = table_of(topic.log.name)
    properties = catalog_properties(settings)
    tables = TableStore(open_catalog(settings), properties.get("warehouse"), properties)
    tables.ensure(name, stored_schema(topic.schema))
    writer, checksum, end = DataFileWriter(tables.files_of(name), file_bytes), RowsChecksum(0), topic.stats().end
    for rows in topic.read_batches():
        checksum.add(rows)
        writer.add(table_rows(rows, partition))
    files = writer.close()
    crc = f"0-{end}:{checksum.value():08x}"
    moved = Moved(topic.log.log_id, 0, end, files, end, crc, partition, checksum.streams())
    tables.commit(name, [moved], str(uuid.uuid4()), lambda _: None)
    storage.guards = [_InTable(end)]
    storage.set_retention(topic.name, frazil.RetentionSettings(age_ms=1))
    storage.maintain()
    assert topic.log.first_offset == end
    return [file.file_path.removeprefix("file://") for file in files]


def make_cold(paths: Sequence[str]) -> None:
    """The files are no longer in the page cache, as far as their file system heeds it; no root is needed."""
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)

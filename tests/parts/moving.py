"""Rows moved into a table by the product's own writer and commit, in this process, without Spark: for tests of what
is read back. The mover itself is tested with Spark."""

from __future__ import annotations

import itertools
import uuid

import pyarrow as pa

import frazil
from frazil.core.rows import stored_schema
from frazil.core.settings import Settings
from frazil.lake.catalog import catalog_properties, open_catalog
from frazil.lake.checksum import RowsChecksum, joined
from frazil.lake.commit import Moved
from frazil.lake.files import write_data_files
from frazil.lake.store import TableStore
from frazil.lake.tables import TableName, table_of, table_rows


class HandMover:
    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.catalog = open_catalog(settings)
        properties = catalog_properties(settings)
        self.tables = TableStore(self.catalog, properties.get("warehouse"), properties)

    def table(self, topic: frazil.Topic):  # type: ignore[no-untyped-def]
        return self.catalog.load_table(self.name(topic).identifier)

    def name(self, topic: frazil.Topic) -> TableName:
        return table_of(topic.log.name)[0]

    def end(self, topic: frazil.Topic) -> int:
        name, partition = table_of(topic.log.name)
        self.tables.ensure(name, stored_schema(topic.schema))
        token = self.tables.token(name, topic.log.log_id, partition)
        return 0 if token is None else token.end

    def move(self, topic: frazil.Topic, end: int | None = None, files: int = 1) -> int:
        """Move what the table lacks, up to `end`, as that many files or so; returns how far the table is."""
        name, partition = table_of(topic.log.name)
        start, end = self.end(topic), topic.stats().end if end is None else end
        if start >= end:
            return start
        written, crcs, streams = [], [], {}
        bounds = sorted({start + (end - start) * at // files for at in range(files + 1)})
        for low, high in itertools.pairwise(bounds):
            checksum, batches = RowsChecksum(low), []
            for rows in topic.read_batches(low, end=high):
                checksum.add(rows)
                batches.append(table_rows(rows, partition))
            crcs.append(f"{low}-{high}:{checksum.value():08x}")
            streams = joined(streams, checksum.streams())
            made = self.tables.files_of(name)
            written += write_data_files(made.metadata, made.io_properties, pa.Table.from_batches(batches), uuid.uuid4())
        moved = Moved(topic.log.log_id, start, end, tuple(written), end - start, ",".join(crcs), partition, streams)
        self.tables.commit(name, [moved], str(uuid.uuid4()), lambda _: None)
        return end


class Floor:
    """Lets retention remove what the table has, as the mover's word does for a serving process."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}

    name = "table"
    holds_rows = True

    def concerns(self, log: object) -> bool:
        return True

    def close(self) -> None:
        pass

    def floor(self, log: object) -> int:
        return self.ends.get(log.log_id, 0)  # type: ignore[attr-defined]

"""Read a range of a log from its objects, for a reader that is not the log's owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from frazil.core.offsets import OffsetRange
from frazil.core.rows import upgraded
from frazil.core.stored_objects import StoredObject
from frazil.log.read.ranges import gathered
from frazil.objects.reading import ObjectReader
from frazil.objects.store import ObjectStore
from frazil.objects.tier import rows_of


def read_object_range(
    store: ObjectStore, objects: Sequence[StoredObject], wanted: OffsetRange, stored: pa.Schema
) -> Iterator[pa.RecordBatch]:
    """Yield batches with `_offset`, exactly the range, in the topic's current schema. The objects hold all of it."""
    return gathered(_frames(store, objects, wanted, stored), wanted.start)


def _frames(
    store: ObjectStore, objects: Sequence[StoredObject], wanted: OffsetRange, stored: pa.Schema
) -> Iterator[tuple[pa.RecordBatch, int]]:
    reader, offset = ObjectReader(store, objects, wanted.start), wanted.start
    try:
        while offset < wanted.end:
            batch = next(reader)
            rows = rows_of(batch, OffsetRange(offset, min(batch.end, wanted.end)))
            yield upgraded(rows, stored), rows.nbytes
            offset = batch.end
    finally:
        reader.close()

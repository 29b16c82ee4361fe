"""The objects of a log for a process that does not own it: they are looked up again where the known ones end."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from frazil.core.errors import ObjectDamaged
from frazil.core.offsets import OffsetRange
from frazil.core.rows import upgraded, with_offsets
from frazil.core.tiers import ContiguousBatches, Extent, Gone
from frazil.lake.files.widening import widened_rows
from frazil.objects.known import KnownLog
from frazil.objects.reading import ObjectReader
from frazil.objects.tier import ObjectTier, rows_of


class UploadedRows:
    """A tier. Its rows have the columns that the topic's table has: `stored`."""

    is_in_memory = False

    def __init__(self, known: KnownLog, stored: pa.Schema) -> None:
        self._known = known
        self._stored = stored

    @property
    def end(self) -> int:
        """Return the end of what is uploaded now."""
        return self._known.refresh().end

    def may_hold(self, offset: int) -> bool:  # noqa: ARG002 - known only after asking the store
        return True

    def extent(self) -> Extent | None:
        known = self._known.load()
        return Extent(known.start, known.end) if known.count else None

    def find(self, time_us: int) -> int | None:
        return ObjectTier(lambda: self._known.store, self._known, lambda: self._stored).find(time_us)

    def batches(self, wanted: OffsetRange) -> ContiguousBatches:
        known = self._known.load()
        if wanted.start >= known.end:
            known = self._known.refresh()
        held = known.covering(wanted)
        if not held:
            raise Gone(wanted.start)
        reader = ObjectReader(self._known.store, held, wanted.start)
        return ContiguousBatches(
            self._rows(reader, OffsetRange(wanted.start, min(wanted.end, held[-1].end))), wanted.start
        )

    def _rows(self, reader: ObjectReader, wanted: OffsetRange) -> Iterator[pa.RecordBatch]:
        at = wanted.start
        try:
            while at < wanted.end:
                batch = next(reader)
                rows = rows_of(batch, OffsetRange(at, min(batch.end, wanted.end)))
                yield with_offsets(upgraded(widened_rows(rows), self._stored), at)
                at = batch.end
        except ObjectDamaged:
            if self._known.refresh().at(at) is None:
                raise Gone(at) from None  # retention has removed it meanwhile
            raise
        finally:
            reader.close()

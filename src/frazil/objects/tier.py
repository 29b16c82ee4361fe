"""The objects of a log as one of its tiers, between its files and its table."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from frazil.core.errors import ObjectDamaged
from frazil.core.offsets import OffsetRange
from frazil.core.rows import upgraded, with_offsets
from frazil.core.stored_objects import StoredObject
from frazil.core.tiers import Extent, Gone
from frazil.log.read.segment_reader import StoredBatch, append_times_us
from frazil.objects.log_objects import LogObjects
from frazil.objects.reading import ObjectReader, first_time_us
from frazil.objects.store import ObjectStore


class KnownObjects(Protocol):
    """Where a tier learns which objects there are."""

    def now(self) -> LogObjects | None:
        """Return the objects if they are known without I/O."""
        ...

    def load(self) -> LogObjects | None:
        """Return the objects, listed if they are not known yet; None if the log has none."""
        ...


class ObjectTier:
    """Rows in the form of `stored()`, the topic's schema. `on_batch` is called for each batch."""

    is_in_memory = False

    def __init__(
        self,
        store: Callable[[], ObjectStore],
        known: KnownObjects,
        stored: Callable[[], pa.Schema],
        on_batch: Callable[[], None] = lambda: None,
    ) -> None:
        self._store = store
        self._known = known
        self._stored = stored
        self._on_batch = on_batch

    def may_hold(self, offset: int) -> bool:
        known = self._known.now()
        return known is None or known.at(offset) is not None

    def extent(self) -> Extent | None:
        known = self._known.load()
        return Extent(known.start, known.end) if known is not None and known.count else None

    def find(self, time_us: int) -> int | None:
        """Search by bisection over the first rows of the objects, then the one that has the row or ends before it."""
        while True:
            known = self._known.load()
            held = () if known is None else known.all()
            try:
                return self._found(held, time_us)
            except ObjectDamaged:
                if known is None or known.all()[:1] == held[:1]:
                    raise  # otherwise retention has removed it meanwhile

    def batches(self, wanted: OffsetRange) -> ObjectBatches:
        return ObjectBatches(self._store(), self._known, wanted, self._stored, self._on_batch)

    def _found(self, held: Sequence[StoredObject], time_us: int) -> int | None:
        store = self._store() if held else None
        low, high = 0, len(held)
        while low < high:  # the last object whose first row is before the time
            assert store is not None
            middle = (low + high) // 2
            if first_time_us(store, held[middle]) < time_us:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return held[0].first if held else None
        assert store is not None
        found = _offset_in_object(store, held[low - 1], time_us)
        return held[low].first if found is None and low < len(held) else found


def _offset_in_object(store: ObjectStore, one: StoredObject, time_us: int) -> int | None:
    if one.last_time_us is not None and one.last_time_us < time_us:
        return None
    reader = ObjectReader(store, (one,), one.first)
    try:
        for batch in reader:
            times = append_times_us(batch.rows)
            if int(times[-1]) >= time_us:
                return batch.offset + int(np.searchsorted(times, time_us))
    finally:
        reader.close()
    return None


class ObjectBatches:
    """Batches of consecutive objects, those that exist when it begins. It ends with the last of them."""

    def __init__(
        self,
        store: ObjectStore,
        known: KnownObjects,
        wanted: OffsetRange,
        stored: Callable[[], pa.Schema],
        on_batch: Callable[[], None],
    ) -> None:
        self._store = store
        self._known = known
        self._end = wanted.end
        self._stored = stored
        self._on_batch = on_batch
        self.offset = wanted.start
        held = self._held(wanted)
        self._reader = ObjectReader(store, held, wanted.start)
        self._end = min(wanted.end, held[-1].end)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self.offset >= self._end:
            raise StopIteration
        self._check_held()
        try:
            batch = next(self._reader)
        except ObjectDamaged:
            self._check_held()  # retention may have removed it meanwhile
            raise
        self._on_batch()
        start, self.offset = self.offset, min(batch.end, self._end)
        return with_offsets(upgraded(rows_of(batch, OffsetRange(start, self.offset)), self._stored()), start)

    def close(self) -> None:
        self._reader.close()

    def _held(self, wanted: OffsetRange) -> tuple[StoredObject, ...]:
        known = self._known.load()
        held = () if known is None else known.covering(wanted)
        if not held:
            raise Gone(wanted.start)
        return held

    def _check_held(self) -> None:
        known = self._known.load()
        if known is None or known.at(self.offset) is None:
            raise Gone(self.offset)


def rows_of(batch: StoredBatch, wanted: OffsetRange) -> pa.RecordBatch:
    """Return the rows of a batch that are in the range."""
    return batch.rows.slice(wanted.start - batch.offset, len(wanted))

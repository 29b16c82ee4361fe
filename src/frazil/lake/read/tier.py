"""The table of a log as one of its tiers."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa

from frazil.core.offsets import OffsetRange, Place
from frazil.core.tiers import Extent
from frazil.lake.read.history import TableHistory
from frazil.lake.read.history_reader import HistoryReader


@dataclass(frozen=True, slots=True, eq=False)
class TableTier:
    """Rows in the form of `stored`, the topic's schema. Only the catalog knows what the table holds.

    `after` is the present or former place of a row before the first wanted one. Missing rows are an error, unless the
    tier skips them.
    """

    history: TableHistory
    stored: pa.Schema
    after: Place | None = None
    skips_missing: bool = False

    @property
    def is_in_memory(self) -> bool:
        return False

    def may_hold(self, offset: int) -> bool:  # noqa: ARG002 - known only by reading, which asks the catalog once
        return True

    def extent(self) -> Extent | None:
        return Extent.of(self.history.span())

    def find(self, time_us: int) -> int | None:
        return self.history.offset_at_time(time_us, skips_missing=self.skips_missing)

    def batches(self, wanted: OffsetRange) -> HistoryReader:
        return self.history.read(
            wanted.start, wanted.end, self.stored, after=self.after, skips_missing=self.skips_missing
        )

"""What a log asks of the colder tier that holds the rows it no longer has."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import TYPE_CHECKING, Protocol

import pyarrow as pa

from frazil.core.offsets import OffsetRange, Place
from frazil.log.stats import TableSide

if TYPE_CHECKING:
    from frazil.log.topic_log import TopicLog


class HistoryBatches(Iterator[pa.RecordBatch], Protocol):
    """Batches with `_offset`, in the form of the topic's present schema, in order.

    `offset` is where the next one begins, or where the rows of this tier end. It goes on by more than was handed out
    only over a gap that a person has accepted.
    """

    offset: int

    def close(self) -> None: ...


class History(Protocol):
    @property
    def table(self) -> str:
        """Its name, for messages."""
        ...

    def span(self) -> OffsetRange | None:
        """The offsets that this tier must hold; None if it holds none of the log."""
        ...

    def read(self, start: int, end: int, stored: pa.Schema, *, after: Place | None = None) -> HistoryBatches:
        """The rows from `start` up to `end`, as far as they are here.

        `after` is where a row before `start` was: it saves looking for files, and never changes what is read.
        """
        ...

    def offset_at_time(self, time_us: int) -> int | None:
        """The first offset appended at or after a time; None if there is none here."""
        ...

    def places(self, offsets: Collection[int]) -> dict[int, Place]:
        """Where the rows are, of those that are here."""
        ...

    def side(self, log: TopicLog, first: int, end: int) -> TableSide | None:
        """What this tier holds of a log that has the rows from `first` up to `end`; None if the log never gets any.

        It is asked for a few seconds at most; it never raises because the tier is away.
        """
        ...


def first_offset(log: TopicLog) -> int:
    """The first offset that can be read, from whatever tier."""
    first = log.first_offset
    if not first or log.history is None:
        return first
    span = log.history.span()
    return first if span is None else min(first, span.start)


HistoryOf = Callable[["TopicLog"], History | None]

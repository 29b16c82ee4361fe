"""Which columns a proof expects in the rows of a table of telemetry, request by request.

The table has recorded what its rows were written with: a later version has more columns, and a tenant's lifted
attributes change. A request is decoded with the attributes that were lifted when its rows were written; columns that
were not written are null, and a value in one of them is a change as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa

from frazil.core.rows import OFFSET
from frazil.lake.read.derived_tables import DerivedTable
from frazil.lake.tables.written import Writing, Writings
from frazil.telemetry.schemas import Lifted
from frazil.telemetry.schemas.lifted import TYPES

INDEX = "_index"
_LIFTED_SIGN = "="

Key = TypeVar("Key")
Replayed = Callable[[np.ndarray], np.ndarray]
"""Returns which of these offsets are those of requests that could not be decoded when they were moved."""


class WrittenColumns:
    """The columns of one table, of one log."""

    def __init__(self, known: pa.Schema, table: DerivedTable | None) -> None:
        """`known` are the columns that this version derives from requests; `table` is None if it is not there."""
        self._written = Writings() if table is None else table.written
        recorded = self._written.all
        lifted = {one.column: pa.field(one.column, TYPES[one.type]) for each in recorded for one in lifted_of(each)}
        fields = {field.name: field for field in known} | lifted
        there = fields.keys() if table is None else {*table.columns()}
        self._fields = [field for name, field in fields.items() if name in there and name != INDEX]
        self._fields.append(known.field(INDEX))
        self.dropped = {} if table is None else _dropped(known, self._written, {*there})
        """Columns that rows were written with and that the table has no more, and from which offset on."""
        self._unrecorded = Writing(tuple(known.names), is_whole=False)
        starts_at_0 = bool(self._written.moves) and self._written.moves[0][0] == 0
        self._is_all_known = starts_at_0 and all(writing.is_whole for writing in recorded)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns to compare: those that the table has, and that follow from a request."""
        return tuple(field.name for field in self._fields)

    def writings(self, offsets: np.ndarray, is_replayed: np.ndarray) -> list[Writing]:
        """Return what the rows of each request were written with."""
        at = np.searchsorted([start for start, _ in self._written.moves], offsets, "right")
        by_move = [self._unrecorded, *(writing for _, writing in self._written.moves)]
        found = [by_move[move] for move in at]
        for place in np.flatnonzero(is_replayed):
            found[place] = self._written.replayed(int(offsets[place])) or self._unrecorded
        return found

    def expected(self, made: pa.RecordBatch, writing: Writing) -> pa.RecordBatch:
        """Return decoded rows as the table has them, with null in the columns that were not written."""
        kept = {OFFSET.name, INDEX, *(text.partition(_LIFTED_SIGN)[0] for text in writing.columns)}
        columns = [
            made.column(field.name) if field.name in kept else pa.nulls(made.num_rows, field.type)
            for field in self._fields
        ]
        return pa.RecordBatch.from_arrays(columns, names=self.names)

    def comparable(self, rows: pa.RecordBatch, is_replayed: Replayed) -> Iterator[pa.RecordBatch]:
        """Yield rows of the table, with null in the columns of which nothing is known."""
        if self._is_all_known:
            yield rows
            return
        offsets = rows.column(OFFSET.name).to_numpy()
        for writing, places in grouped(self.writings(offsets, is_replayed(offsets))):
            part = rows.take(pa.array(places))
            yield part if writing.is_whole else self.expected(part, writing)


def _dropped(known: pa.Schema, written: Writings, there: Collection[str]) -> dict[str, int]:
    """Leave out lifted attributes: they are in the maps too."""
    writings = [*written.moves, *((start, writing) for start, _, writing in written.replays)]
    found: dict[str, int] = {}
    for start, writing in sorted(writings, key=lambda one: one[0], reverse=True):
        found |= {name: start for name in writing.columns if name in known.names and name not in there}
    return found


def lifted_of(writing: Writing) -> tuple[Lifted, ...]:
    """Return the attributes that were lifted when rows were written."""
    return tuple(Lifted.parse(text) for text in sorted(writing.columns) if _LIFTED_SIGN in text)


def grouped(keys: Sequence[Key]) -> Iterator[tuple[Key, list[int]]]:
    """Yield the places of each key."""
    places: dict[Key, list[int]] = {}
    for place, key in enumerate(keys):
        places.setdefault(key, []).append(place)
    yield from places.items()

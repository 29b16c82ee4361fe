"""The tables that a range of a log is written to: the topic's own, and tables derived from its rows.

Each table has its own token for the log. The topic's own table is committed last, and only after the derived tables
have the range. So its token is never ahead of theirs: it is enough to ask the own table, as retention does. After a
crash between two commits, tables that are behind get the range alone, before anything new is moved.

A derived table that gets no rows of a range is not committed. So its end is its token's or that of the topic's own
table, whichever is later, and its next move starts at its token.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa

from frazil.core.offsets import OffsetRange
from frazil.lake.files.writer import DataFile, TableFiles
from frazil.lake.tables.schema import TableLayout, TableName


class Derived(Protocol):
    """Derives rows of tables from a topic's rows. Tasks get it pickled."""

    @property
    def tables(self) -> Mapping[TableName, TableLayout]:
        """Return the tables. If the topic's own is among them, it holds derived rows instead of the topic's."""
        ...

    @property
    def errors(self) -> TableName | None:
        """Return the table of rows from which nothing could be derived; None if there is no such table."""
        ...

    def written(self, table: TableName) -> tuple[str, ...]:
        """Return the columns that the rows of a table have, each with what is in it if that may change.

        The table records them, unless its columns never change.
        """
        ...

    def parts(self, rows: pa.RecordBatch, partition: int) -> Iterator[Mapping[TableName, pa.RecordBatch]]:
        """Yield the rows of each table, derived from rows in the form of the log, with their offsets."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """A table that a task writes files for."""

    table: TableName
    files: TableFiles
    is_result: bool = False
    """Whether it gets derived rows, or those of a statement."""


@dataclass(frozen=True, slots=True)
class Written:
    """The files that a task wrote for one table. They are in no table yet."""

    table: TableName
    files: tuple[DataFile, ...]
    rows: int
    is_result: bool = False
    """Whether the rows differ from those of the log: the result of a statement, or derived."""


@dataclass(frozen=True, slots=True)
class TableEnd:
    """How far a table has a log."""

    token: int
    """Where its next move starts."""
    end: int
    """Up to where it has all rows: that is later for a derived table that got none for a while."""


def next_range(ends: Mapping[TableName, int], log_end: int) -> tuple[OffsetRange, tuple[TableName, ...]] | None:
    """Return the range to move next and the tables that lack it; None if all tables have all rows.

    Tables that are behind catch up first, to the end of the next one.
    """
    start = min(ends.values())
    if start >= log_end:
        return None
    end = min([log_end, *(each for each in ends.values() if each > start)])
    return OffsetRange(start, end), tuple(table for table, each in ends.items() if each == start)

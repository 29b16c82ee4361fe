"""Check that a relation has each offset once: rows are read only where the files' statistics are inconclusive."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import duckdb

from frazil.core.errors import TableDamaged
from frazil.core.offsets import OffsetRange
from frazil.lake.tables.schema import TableName, topic_of
from frazil.node.query.relation import PlaceColumns, quoted


@dataclass(frozen=True, slots=True)
class Doubt:
    """Offsets of one partition that the table must have, and the SELECT of the table's valid rows."""

    table: TableName
    rows: str
    columns: PlaceColumns
    partition: int
    offsets: Sequence[OffsetRange]

    def check(self, duck: duckdb.DuckDBPyConnection) -> None:
        """Raise `TableDamaged`, as a reader would, if one is missing or duplicated."""
        for offsets in self.offsets:
            where = self.columns.within(self.partition, offsets)
            rows = f"(SELECT {quoted(self.columns.offset)} AS place FROM ({self.rows}) WHERE {where})"  # noqa: S608
            found = _one(duck, f"SELECT count(*), count(DISTINCT place) FROM {rows}")  # noqa: S608
            if found == (len(offsets), len(offsets)):
                continue
            wrong = min(one for one in (_double(duck, rows), _missing(duck, rows, offsets)) if one is not None)
            raise TableDamaged(str(topic_of(self.table, self.partition)), str(self.table), *wrong)


def _double(duck: duckdb.DuckDBPyConnection, rows: str) -> tuple[int, str] | None:
    query = f"SELECT min(place) FROM (SELECT place FROM {rows} GROUP BY place HAVING count(*) > 1)"  # noqa: S608
    (offset,) = _one(duck, query)
    return None if offset is None else (offset, f"offset {offset} is there more than once")


def _missing(duck: duckdb.DuckDBPyConnection, rows: str, offsets: OffsetRange) -> tuple[int, str] | None:
    following = f"SELECT {offsets.start} AS place UNION ALL SELECT place + 1 FROM {rows}"  # noqa: S608
    first = f"SELECT min(place) FROM ({following}) WHERE place NOT IN {rows} AND place < {offsets.end}"  # noqa: S608
    (low,) = _one(duck, first)
    if low is None:
        return None
    (high,) = _one(duck, f"SELECT min(place) FROM {rows} WHERE place > {low}")  # noqa: S608
    return low, f"offsets {low} up to {offsets.end if high is None else high} are missing"


def _one(duck: duckdb.DuckDBPyConnection, query: str) -> tuple[int | None, ...]:
    """Fetch everything: DuckDB refuses other work on a connection with an unfinished result."""
    (found,) = duck.execute(query).fetchall()
    return tuple(found)

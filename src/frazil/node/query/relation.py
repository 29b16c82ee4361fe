"""A topic as one DuckDB relation: its columns, and the SELECT over each of its parts.

DuckDB treats names that differ only in case as equal. The second of them gets a number, as in DuckDB, and the same one
for all combinations of parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from frazil.core.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class RelationPart:
    """The source, and the columns to select from it by relation name. A missing column is null."""

    source: str
    columns: Mapping[str, str]
    where: str = ""


def shown_names(names: Iterable[str]) -> dict[str, str]:
    """Return the name of each column in queries."""
    shown: dict[str, str] = {}
    taken: set[bytes] = set()
    for name in names:
        if name in shown:
            continue
        one, number = name, 0
        while one.encode().lower() in taken:  # ASCII only, as in DuckDB
            number += 1
            one = f"{name}_{number}"
        taken.add(one.encode().lower())
        shown[name] = one
    return shown


def union(parts: Sequence[RelationPart], shown: Mapping[str, str]) -> str:
    return " UNION ALL ".join(select(part, shown) for part in parts)


def select(part: RelationPart, shown: Mapping[str, str]) -> str:
    columns = ", ".join(
        f"{quoted(part.columns[name]) if name in part.columns else 'NULL'} AS {quoted(one)}"
        for name, one in shown.items()
    )
    return f"SELECT {columns} FROM {part.source}{part.where and ' WHERE ' + part.where}"  # noqa: S608 - quoted names


def parquet(paths: Iterable[str], columns: Iterable[tuple[int, str, str]]) -> str:
    """Read files by field id: `columns` has the id, the new name and the type of each."""
    files = ", ".join(text(file_pattern(path)) for path in paths)
    fields = ", ".join(
        f"{number}: {{name: {text(name)}, type: {text(kind)}, default_value: NULL}}" for number, name, kind in columns
    )
    return f"read_parquet([{files}], hive_partitioning = false, schema = MAP {{{fields}}})"


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """The names of a source's columns that identify a row."""

    partition: str
    offset: str

    def only_in(self, ranges: Mapping[int, Sequence[OffsetRange]]) -> str:
        """Select the valid rows, by partition and offset."""
        found = [self.within(partition, one) for partition, held in sorted(ranges.items()) for one in held]
        return " OR ".join(found) or "false"

    def within(self, partition: int, offsets: OffsetRange) -> str:
        low, high, offset = offsets.start, offsets.end, quoted(self.offset)
        return f"({quoted(self.partition)} = {partition} AND {offset} >= {low} AND {offset} < {high})"


def quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def file_pattern(path: str) -> str:
    """Escape a path: DuckDB treats `*`, `?` and `[` as a pattern."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in path)

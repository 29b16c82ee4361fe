"""A topic as one relation of DuckDB: which columns it has, and the SELECT over each of its parts.

DuckDB takes names that differ in case alone for the same. The second of them gets a number, as DuckDB has it, and the
same one whichever parts there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from frazil.core.offsets import OffsetRange


@dataclass(frozen=True, slots=True)
class Part:
    """What to select from, and by column what to select: a name of the relation. A column that is not there is null."""

    source: str
    columns: Mapping[str, str]
    where: str = ""


def shown_names(names: Iterable[str]) -> dict[str, str]:
    """By column what a query calls it."""
    shown: dict[str, str] = {}
    taken: set[bytes] = set()
    for name in names:
        if name in shown:
            continue
        one, number = name, 0
        while one.encode().lower() in taken:  # ASCII alone, as DuckDB has it
            number += 1
            one = f"{name}_{number}"
        taken.add(one.encode().lower())
        shown[name] = one
    return shown


def union(parts: Sequence[Part], shown: Mapping[str, str]) -> str:
    return " UNION ALL ".join(select(part, shown) for part in parts)


def select(part: Part, shown: Mapping[str, str]) -> str:
    columns = ", ".join(
        f"{quoted(part.columns[name]) if name in part.columns else 'NULL'} AS {quoted(one)}"
        for name, one in shown.items()
    )
    return f"SELECT {columns} FROM {part.source}{part.where and ' WHERE ' + part.where}"  # noqa: S608 - quoted names


def parquet(paths: Iterable[str], columns: Iterable[tuple[int, str, str]]) -> str:
    """Files by field id: `columns` has the id, the name to give and the type of each."""
    files = ", ".join(text(file_pattern(path)) for path in paths)
    fields = ", ".join(
        f"{number}: {{name: {text(name)}, type: {text(kind)}, default_value: NULL}}" for number, name, kind in columns
    )
    return f"read_parquet([{files}], hive_partitioning = false, schema = MAP {{{fields}}})"


@dataclass(frozen=True, slots=True)
class PlaceColumns:
    """What a source calls the columns that say which row it is."""

    partition: str
    offset: str

    def only_in(self, ranges: Mapping[int, Sequence[OffsetRange]]) -> str:
        """The rows that count, by partition and offset."""
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
    """A path that stands for itself: DuckDB takes `*`, `?` and `[` for a pattern."""
    return "".join(f"[{each}]" if each in "*?[" else each for each in path)

"""Which columns the derived rows of a table were written with, so that a proof expects no other.

    frazil.{log id}.written   [[start, columns], …]        rows of requests from this offset on have these columns
    frazil.{log id}.replays   [[start, end, columns], …]   of requests there that were replayed, rows have these columns

A later version adds columns, and a tenant lifts attributes into columns when it likes. Rows that are there already have
null in them, and a compaction writes that null into a file like any value. So the commits record it, in the properties
of the table: with the first move, and with each that has other columns than the one before.

Beyond `ENTRIES_MAX` the two oldest entries become one that has the columns of both, and `true` as its last part: its
rows may have more.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.table import Table

from frazil.core.errors import TableRefused
from frazil.lake.tables.token import replays_key, written_key

ENTRIES_MAX = 32


@dataclass(frozen=True, slots=True)
class Writing:
    """The columns of the rows of some requests. A text names a column, and may say what is in it."""

    columns: tuple[str, ...]
    is_whole: bool = True
    """Whether all other columns are null. If not, nothing is known of them."""

    def common(self, other: Writing) -> Writing:
        return Writing(tuple(one for one in self.columns if one in other.columns), is_whole=False)


@dataclass(frozen=True, slots=True)
class Writings:
    """What the rows of one log in a table were written with, by the offsets of their requests."""

    moves: tuple[tuple[int, Writing], ...] = ()
    """Each from its offset on, up to that of the next."""
    replays: tuple[tuple[int, int, Writing], ...] = ()

    @property
    def all(self) -> list[Writing]:
        return [*(one for _, one in self.moves), *(one for _, _, one in self.replays)]

    def moved(self, offset: int) -> Writing | None:
        """Return what a request was moved with; None if that was not recorded."""
        return next((writing for start, writing in reversed(self.moves) if start <= offset), None)

    def replayed(self, offset: int) -> Writing | None:
        """Return what a request that could not be decoded when it was moved was written with."""
        found = [writing for start, end, writing in self.replays if start <= offset < end]
        for one in found[1:]:
            found[0] = found[0] if one == found[0] else found[0].common(one)
        return found[0] if found else self.moved(offset)


def written_of(table: Table, log_id: str) -> Writings:
    """Return what a table says of one log."""
    moves = tuple((start, _writing(*rest)) for start, *rest in _entries(table, written_key(log_id)))
    replays = tuple((start, end, _writing(*rest)) for start, end, *rest in _entries(table, replays_key(log_id)))
    return Writings(moves, replays)


def with_move(table: Table, log_id: str, start: int, columns: Sequence[str]) -> dict[str, str]:
    """Return the entry to set in the commit of a move that begins at an offset; none if its columns are as before."""
    found, now = written_of(table, log_id), Writing(tuple(columns))
    kept = [(at, writing) for at, writing in found.moves if at < start]  # later ones were rolled back
    if kept and kept[-1][1] == now and len(kept) == len(found.moves):
        return {}
    kept.append((start, now))
    while len(kept) > ENTRIES_MAX:
        (at, first), (_, second) = kept[:2]
        kept[:2] = [(at, first.common(second))]
    return {written_key(log_id): _text([[at, *_parts(writing)] for at, writing in kept])}


def with_replay(table: Table, log_id: str, start: int, end: int, columns: Sequence[str]) -> dict[str, str]:
    """Return the entry to set in the commit of a replay of requests in a range of offsets."""
    kept, now = list(written_of(table, log_id).replays), Writing(tuple(columns))
    if kept and kept[-1][2] == now:
        start, end = min(start, kept[-1][0]), max(end, kept[-1][1])
        kept.pop()
    kept.append((start, end, now))
    while len(kept) > ENTRIES_MAX:
        (low, high, first), (other_low, other_high, second) = kept[:2]
        kept[:2] = [(min(low, other_low), max(high, other_high), first.common(second))]
    return {replays_key(log_id): _text([[low, high, *_parts(writing)] for low, high, writing in kept])}


def _entries(table: Table, key: str) -> list[list[Any]]:
    text = table.metadata.properties.get(key, "[]")
    try:
        found: list[list[Any]] = json.loads(text)
    except ValueError as error:
        name = ".".join(table.name())
        raise TableRefused(f"the property {key} of {name} can't be read ({error}); unset it", table=name) from None
    return found


def _writing(columns: Sequence[str], is_partial: bool = False) -> Writing:
    return Writing(tuple(columns), is_whole=not is_partial)


def _parts(writing: Writing) -> list[Any]:
    return [writing.columns] if writing.is_whole else [writing.columns, True]


def _text(entries: list[list[Any]]) -> str:
    return json.dumps(entries, separators=(",", ":"))

"""Offset ranges, half-open and never empty, and the position of a row in a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True, order=True)
class OffsetRange:
    """The offsets from `start` up to, but not including, `end`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end:
            raise ValueError(f"an offset range needs 0 <= start < end, got {self.start} and {self.end}")

    def __len__(self) -> int:
        return self.end - self.start

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.start, self.end))

    def __contains__(self, offset: object) -> bool:
        return isinstance(offset, int) and self.start <= offset < self.end

    def __str__(self) -> str:
        return f"[{self.start}, {self.end})"


class Place(NamedTuple):
    """The position of a row in a table: the file that holds it, and the snapshot that added this file.

    Files with later rows have the same sequence number or a higher one, unless the table was rewritten.
    """

    snapshot_id: int
    file: str
    sequence_number: int

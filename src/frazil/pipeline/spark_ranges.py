"""What the Spark source reads: which offsets of which logs, and in what pieces. Pure decisions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frazil.core.offsets import OffsetRange
from frazil.lake.carried import CarriedPlan
from frazil.lake.offset_files import OffsetFile, pieces
from frazil.log.folder_mark import FolderMark

TASK_BYTES = 64 * 1024 * 1024
TASK_BYTES_MIN = 16 * 1024 * 1024
TASKS_WANTED = 8
"""Tasks are as large as `TASK_BYTES`, and smaller ones as long as there are fewer than this of them."""

Files = Sequence[tuple[int, Path]]
Partition = tuple[str, int]
Ends = Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Offsets for one task, from the table or from the log. What is gone from there by then is looked for anew."""

    topic: str
    partition: int
    log: str
    log_id: str
    range: OffsetRange
    in_table: bool
    stored_schema: bytes
    files: tuple[tuple[int, Path], ...] = ()
    owner: str | None = None
    folder: FolderMark | None = None
    plan: CarriedPlan | None = None
    """The files of the table, so that no task has to look for them."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets that are better read together, and about how many bytes they take."""

    range: OffsetRange
    size_bytes: float


def along_files(files: Sequence[OffsetFile], wanted: OffsetRange) -> list[Stretch]:
    """The range cut where files begin and end, so that no two tasks need the same file."""
    return [
        Stretch(piece.range, sum(_share(file, piece.range) for file in piece.files))
        for piece in pieces(files, wanted, len(wanted))
    ]


def _share(file: OffsetFile, wanted: OffsetRange) -> float:
    held = max(1, file.high - file.low)
    met = min(file.high, wanted.end) - max(file.low, wanted.start)
    return file.task.file.file_size_in_bytes * max(0, met) / held


def task_bytes(total_bytes: float, tasks_min: int | None) -> float:
    """How large a task is."""
    size = min(TASK_BYTES, max(TASK_BYTES_MIN, total_bytes / TASKS_WANTED))
    return size if tasks_min is None else min(size, total_bytes / tasks_min)


def packed(stretches: Iterable[Stretch], size_bytes: float) -> list[OffsetRange]:
    """Neighbours joined up to a size; what is much larger alone is cut evenly."""
    found: list[OffsetRange] = []
    held = 0.0
    for stretch in stretches:
        last = found[-1] if found else None
        if last is not None and last.end == stretch.range.start and held + stretch.size_bytes <= size_bytes:
            found[-1] = OffsetRange(last.start, stretch.range.end)
            held += stretch.size_bytes
            continue
        parts = 1 if stretch.size_bytes <= 1.5 * size_bytes else int(-(-stretch.size_bytes // size_bytes))
        found += split(stretch.range, parts)
        held = stretch.size_bytes / parts
    return found


def split(wanted: OffsetRange, parts: int) -> list[OffsetRange]:
    """Even pieces, as many as asked for or as there are rows."""
    parts = max(1, min(parts, len(wanted)))
    bounds = [wanted.start + len(wanted) * at // parts for at in range(parts + 1)]
    return [OffsetRange(low, high) for low, high in itertools.pairwise(bounds)]


def held_by(files: Files, wanted: OffsetRange) -> tuple[tuple[int, Path], ...]:
    """The segments that hold a range: others may be gone by the time it is read."""
    first = max((at for at, (base, _) in enumerate(files) if base <= wanted.start), default=0)
    return tuple((base, path) for base, path in files[first:] if base < wanted.end)


def at_least(ranges: int, tasks_min: int) -> int:
    """Into how many pieces each range must be cut that there are so many tasks."""
    return -(-tasks_min // max(1, ranges))


def capped(start: Ends, end: Ends, limit: int | None) -> dict[Partition, int]:
    """How far one batch of a stream goes: each partition by its share of what waits, `limit` rows in all.

    Each partition that waits gets a row, however small its share. If there are more of them than rows, and for rows
    that are left over, they take turns: by how many rows were read so far, so the next batch begins with others.
    """
    waiting = {key: max(0, end[key] - start.get(key, 0)) for key in sorted(end)}
    total = sum(waiting.values())
    if limit is None or total <= limit:
        return {key: max(end[key], start.get(key, 0)) for key in waiting}
    turn = _in_turn([key for key, count in waiting.items() if count], sum(start.values()))
    taken = dict.fromkeys(waiting, 0)
    for key in turn[:limit]:
        taken[key] = 1
    rest, left = limit - sum(taken.values()), total - len(turn)
    if rest:
        for key in turn:
            taken[key] += rest * (waiting[key] - 1) // left
    while (more := limit - sum(taken.values())) > 0:
        for key in [key for key in turn if taken[key] < waiting[key]][:more]:
            taken[key] += 1
    return {key: start.get(key, 0) + count for key, count in taken.items()}


def _in_turn(keys: list[Partition], read: int) -> list[Partition]:
    at = read % max(1, len(keys))
    return keys[at:] + keys[:at]

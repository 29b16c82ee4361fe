"""The ranges that the Spark source reads, and their pieces. Pure decisions."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials
from frazil.core.offsets import OffsetRange
from frazil.core.stored_objects import StoredObject
from frazil.lake.read.offset_files import OffsetFile, pieces
from frazil.lake.read.task_plan import TaskPlan
from frazil.log.folder.identity import FolderMark

TASK_BYTES = 64 * 1024 * 1024
TASK_BYTES_MIN = 16 * 1024 * 1024
TASKS_WANTED = 8
"""Tasks have `TASK_BYTES`, or less while there are fewer than this many."""

Files = Sequence[tuple[int, Path]]
Partition = tuple[str, int]
Ends = Mapping[Partition, int]


@dataclass(frozen=True, slots=True)
class SourceRange:
    """Offsets for one task, from the table or from the log. Rows that are gone from there are searched again."""

    topic: str
    partition: int
    log: str
    log_id: str
    range: OffsetRange
    in_table: bool
    stored_schema: bytes
    files: tuple[tuple[int, Path], ...] = ()
    owner: str | None = None
    credentials: ClientCredentials = NO_CREDENTIALS
    """For the owner. They travel in the task, which Spark neither logs nor shows."""
    folder: FolderMark | None = None
    plan: TaskPlan | None = None
    """The files of the table, so that no task has to search for them."""
    objects: tuple[StoredObject, ...] = ()
    """The objects with rows of the range."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Offsets that are better read together, and their approximate size."""

    range: OffsetRange
    size_bytes: float


def along_files(files: Sequence[OffsetFile], wanted: OffsetRange) -> list[Stretch]:
    """Cut the range at file boundaries, so that no two tasks need the same file."""
    return [
        Stretch(piece.range, sum(_share(file, piece.range) for file in piece.files))
        for piece in pieces(files, wanted, len(wanted))
    ]


def _share(file: OffsetFile, wanted: OffsetRange) -> float:
    held = max(1, file.high - file.low)
    met = min(file.high, wanted.end) - max(file.low, wanted.start)
    return file.task.file.file_size_in_bytes * max(0, met) / held


def task_bytes(total_bytes: float, tasks_min: int | None) -> float:
    """Return the size of a task."""
    size = min(TASK_BYTES, max(TASK_BYTES_MIN, total_bytes / TASKS_WANTED))
    return size if tasks_min is None else min(size, total_bytes / tasks_min)


def packed(stretches: Iterable[Stretch], size_bytes: float) -> list[OffsetRange]:
    """Join neighbours up to a size; a much larger one is cut evenly."""
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
    """Split into even pieces, as many as requested or as there are rows."""
    parts = max(1, min(parts, len(wanted)))
    bounds = [wanted.start + len(wanted) * at // parts for at in range(parts + 1)]
    return [OffsetRange(low, high) for low, high in itertools.pairwise(bounds)]


def held_by(files: Files, wanted: OffsetRange) -> tuple[tuple[int, Path], ...]:
    """Return the segments that hold a range: others may be gone by the time it is read."""
    first = max((at for at, (base, _) in enumerate(files) if base <= wanted.start), default=0)
    return tuple((base, path) for base, path in files[first:] if base < wanted.end)


def at_least(ranges: int, tasks_min: int) -> int:
    """Return how many pieces each range needs so that there are that many tasks."""
    return -(-tasks_min // max(1, ranges))


def capped(start: Ends, end: Ends, limit: int | None) -> dict[Partition, int]:
    """Return the end of one batch of a stream: each partition in proportion to what waits, `limit` rows in total.

    Each waiting partition gets a row, however small its share. If there are more partitions than rows, and for rows
    left over, they take turns: by the number of rows read so far, so that the next batch begins with others.
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

"""What to move next: a pure decision from the state of each log and table, and the topic's settings."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frazil.core.offsets import OffsetRange
from frazil.core.settings.lake import WriterSettings
from frazil.lake.tables.schema import TableName

TASK_SHARE = 8
"""A task buffers at most this fraction of `max_memory_bytes`: rows are held as read, by partition and as Parquet, and
freed memory is not returned at once. `docs/decisions/0016` has the figures."""


ADDED_BYTES_PER_ROW = 16
"""The offset, the partition and a little more: a range of average rows must not end in a second, tiny file."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The rows of a log that a table does not have yet, and since when some have waited."""

    log_id: str
    range: OffsetRange
    bytes_per_row: float
    waits_since_us: int
    writer: WriterSettings
    tables: tuple[TableName, ...] = ()
    """The tables that lack the rows."""

    @property
    def size_bytes(self) -> float:
        return len(self.range) * self.bytes_per_row


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A piece of a log for one task to move."""

    log_id: str
    range: OffsetRange
    size_bytes: float
    tables: tuple[TableName, ...] = ()


def flush_bytes(writer: WriterSettings) -> int:
    """How much a task buffers before it writes files. Actual rows may differ much from the average."""
    return writer.max_memory_bytes // TASK_SHARE


def is_due(waiting: Waiting, now_us: int) -> bool:
    """Whether enough rows or bytes wait, or the oldest has waited long enough.

    A row with a time in the future predates a clock that was set back: its wait is unknown.
    """
    writer = waiting.writer
    return (
        len(waiting.range) >= writer.batch_size
        or waiting.size_bytes >= writer.max_memory_bytes
        or not 0 <= now_us - waiting.waits_since_us < writer.flush_interval_ms * 1_000
    )


def cut(waiting: Waiting, ranges_max: int) -> list[RangeTask]:
    """Cut even ranges for about one file each, from the oldest row on; what exceeds `ranges_max` waits."""
    rows_max = max(1, int(flush_bytes(waiting.writer) / (waiting.bytes_per_row + ADDED_BYTES_PER_ROW)))
    start, end = waiting.range.start, min(waiting.range.end, waiting.range.start + rows_max * ranges_max)
    pieces = -(-(end - start) // rows_max)
    bounds = [start + (end - start) * index // pieces for index in range(pieces + 1)]
    return [
        RangeTask(waiting.log_id, OffsetRange(low, high), (high - low) * waiting.bytes_per_row, waiting.tables)
        for low, high in itertools.pairwise(bounds)
    ]


def pack(ranges: Iterable[RangeTask], tasks: int) -> list[list[RangeTask]]:
    """Distribute ranges evenly over at most `tasks` tasks: the largest first, each to the emptiest."""
    ordered = sorted(ranges, key=lambda piece: (-piece.size_bytes, piece.log_id, piece.range.start))
    packed: list[list[RangeTask]] = [[] for _ in range(min(tasks, len(ordered)))]
    sizes = [0.0] * len(packed)
    for piece in ordered:
        emptiest = min(range(len(packed)), key=lambda index: (sizes[index], len(packed[index])))
        packed[emptiest].append(piece)
        sizes[emptiest] += piece.size_bytes + 1
    return packed


def plan(
    waiting: Sequence[Waiting], now_us: int, tasks: int, *, all_of_it: bool = False, ranges_max: int = 64
) -> list[list[RangeTask]]:
    """Return the tasks of one tick; empty if nothing is due."""
    due = [one for one in waiting if all_of_it or is_due(one, now_us)]
    return pack([piece for one in due for piece in cut(one, ranges_max)], tasks) if due else []

"""What to move next: a pure decision from what each log has, what each table says, and the topic's knobs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from frazil.core.lake_settings import WriterSettings
from frazil.core.offsets import OffsetRange

TASK_SHARE = 8
"""A task gathers at most this part of `max_memory_bytes`: rows are held as read, by partition and as Parquet, and
what was freed is not given back at once. `docs/decisions/0016` has the figures."""


ADDED_BYTES_PER_ROW = 16
"""The offset, the partition and a little more: a range of average rows must not end in a second, tiny file."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The rows of a log that its table does not have yet, and since when some have waited."""

    log_id: str
    range: OffsetRange
    bytes_per_row: float
    waits_since_us: int
    writer: WriterSettings

    @property
    def size_bytes(self) -> float:
        return len(self.range) * self.bytes_per_row


@dataclass(frozen=True, slots=True)
class RangeTask:
    """A piece of a log for one task to move."""

    log_id: str
    range: OffsetRange
    size_bytes: float


def flush_bytes(writer: WriterSettings) -> int:
    """How much a task gathers before it writes files. What a range really has may be far from the average."""
    return writer.max_memory_bytes // TASK_SHARE


def is_due(waiting: Waiting, now_us: int) -> bool:
    """Enough rows, enough bytes, or the oldest has waited long enough: whichever comes first.

    A row that waits since later than now is from before the clock was set back: nobody knows how long it waits.
    """
    writer = waiting.writer
    return (
        len(waiting.range) >= writer.batch_size
        or waiting.size_bytes >= writer.max_memory_bytes
        or not 0 <= now_us - waiting.waits_since_us < writer.flush_interval_ms * 1_000
    )


def cut(waiting: Waiting, ranges_max: int) -> list[RangeTask]:
    """Ranges of even size that make about one file each, from the oldest row on; what is beyond `ranges_max` waits."""
    rows_max = max(1, int(flush_bytes(waiting.writer) / (waiting.bytes_per_row + ADDED_BYTES_PER_ROW)))
    start, end = waiting.range.start, min(waiting.range.end, waiting.range.start + rows_max * ranges_max)
    pieces = -(-(end - start) // rows_max)
    bounds = [start + (end - start) * index // pieces for index in range(pieces + 1)]
    return [
        RangeTask(waiting.log_id, OffsetRange(low, high), (high - low) * waiting.bytes_per_row)
        for low, high in itertools.pairwise(bounds)
    ]


def pack(ranges: Iterable[RangeTask], tasks: int) -> list[list[RangeTask]]:
    """Spread ranges over at most `tasks` tasks so that these are even: the largest first, each to the emptiest."""
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
    """The tasks of one tick; empty if nothing is due."""
    due = [one for one in waiting if all_of_it or is_due(one, now_us)]
    return pack([piece for one in due for piece in cut(one, ranges_max)], tasks) if due else []

"""What to move next: a pure decision from the state of each log and table, and the topic's settings."""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from frazil.core.offsets import OffsetRange
from frazil.core.settings.lake import MIB, WriterSettings
from frazil.lake.tables.schema import TableName

TASK_SHARE = 8
"""A task buffers at most this fraction of `max_memory_bytes`: rows are held as read, by partition and as Parquet, and
freed memory is not returned at once. `docs/decisions/0016` has the figures."""


TICK_BYTES = 512 * MIB
"""What a tick moves at most: the rest waits for the next one. A tick takes seconds then, and a topic that becomes due
meanwhile waits no longer than that."""

COMMIT_BYTES = 4 * MIB
"""A commit takes as long as moving so many bytes."""

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
    group: str = ""
    """Whose rows they are: the tenant's, if there is one. Groups get equal shares of a tick."""

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
    waiting: Sequence[Waiting],
    now_us: int,
    tasks: int,
    *,
    all_of_it: bool = False,
    ranges_max: int = 64,
    cost_max: float = TICK_BYTES,
) -> list[list[RangeTask]]:
    """Return the tasks of one tick; empty if nothing is due."""
    due = [one for one in waiting if all_of_it or is_due(one, now_us)]
    return pack(share([(one, cut(one, ranges_max)) for one in due], now_us, cost_max), tasks) if due else []


def share(due: Sequence[tuple[Waiting, list[RangeTask]]], now_us: int, cost_max: float) -> list[RangeTask]:
    """Return the ranges of this tick, of those that are due: the next range is of the group that has least so far.

    So a group gets its share of each tick, whatever the others have. Of groups with equally much the one that is the
    latest comes first: if there are more groups than a tick can serve, each gets its turn. Within a group its topics
    share in the same way. A range costs its bytes, and what a commit costs.
    """
    groups: dict[str, list[_Turn]] = defaultdict(list)
    for one, pieces in due:
        heapq.heappush(groups[one.group or one.log_id], _Turn(0.0, -late_us(one, now_us), one.log_id, pieces[::-1]))
    turns = [(0.0, topics[0].earlier_us, name) for name, topics in groups.items()]
    heapq.heapify(turns)
    chosen: list[RangeTask] = []
    cost_left = cost_max
    while turns and cost_left > 0:
        spent, _, name = heapq.heappop(turns)
        topics = groups[name]
        turn = heapq.heappop(topics)
        piece = turn.pieces.pop()
        cost = piece.size_bytes + (0 if turn.spent else COMMIT_BYTES)
        chosen.append(piece)
        cost_left -= cost
        if turn.pieces:
            heapq.heappush(topics, replace(turn, spent=turn.spent + cost))
        if topics:
            heapq.heappush(turns, (spent + cost, topics[0].earlier_us, name))
    return chosen


@dataclass(frozen=True, slots=True, order=True)
class _Turn:
    """A topic's place among those of its group: what it has of this tick, and minus how late it is."""

    spent: float
    earlier_us: int
    log_id: str
    pieces: list[RangeTask] = field(compare=False)
    """Those that it has not yet, the next one at the end."""


def late_us(waiting: Waiting, now_us: int) -> int:
    """Return for how long the oldest rows have been due; below 0 if they are due for their size alone."""
    return now_us - waiting.waits_since_us - waiting.writer.flush_interval_ms * 1_000

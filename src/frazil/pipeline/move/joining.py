"""Join the outputs of a log's tasks to one move for each table."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence

from frazil.lake.commit.commit import Moved
from frazil.lake.files.checksum import joined, value
from frazil.lake.tables.schema import TableName
from frazil.pipeline.move.tasks import RangeOutput


def whole_part(pieces: Sequence[RangeOutput]) -> tuple[list[RangeOutput], list[RangeOutput], str | None]:
    """Return the pieces before the first failed one, those after it, and its error: commits must be contiguous."""
    ordered = sorted(pieces, key=lambda piece: piece.range.start)
    for at, piece in enumerate(ordered):
        if piece.error is not None:
            return ordered[:at], ordered[at + 1 :], piece.error
    return ordered, [], None


def moves_of(
    outputs: Sequence[RangeOutput], partition: int, tokens: Mapping[TableName, int] | None = None
) -> dict[TableName, Moved]:
    """Join the pieces of one log to one move for each table: they are contiguous parts of one range.

    `tokens` are those of derived tables: their moves start there, not where the range does.
    """
    ordered = sorted(outputs, key=lambda output: output.range.start)
    for left, right in itertools.pairwise(ordered):
        assert left.range.end == right.range.start
    streams = functools.reduce(joined, (output.streams for output in ordered))
    checksum = ",".join(
        f"{output.range.start}-{output.range.end}:{value(output.streams):08x}" for output in ordered
    )  # fmt: skip
    found = {}
    for table in (written.table for written in ordered[0].written):
        parts = [written for output in ordered for written in output.written if written.table == table]
        assert len(parts) == len(ordered)
        found[table] = Moved(
            ordered[0].log_id,
            (tokens or {}).get(table, ordered[0].range.start),
            ordered[-1].range.end,
            tuple(file for part in parts for file in part.files),
            sum(part.rows for part in parts),
            checksum,
            partition,
            streams,
            transformed=any(part.is_result for part in parts),
            last=ordered[-1].last,
        )
    return found

"""A bound on labels: the first by name have their own, so that the same ones keep theirs; the rest is one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

LABELS_MAX = 200
OTHER = "other"

Labels = tuple[str, ...]
Rows = Sequence[tuple[Labels, Sequence[float]]]


def bounded(rows: Rows, join: Sequence[Callable[[Iterable[float]], float]] | None = None) -> Rows:
    """`join` says for each column what becomes of the rest; unsaid, it is summed."""
    ordered = sorted(rows, key=lambda row: row[0])
    kept, rest = ordered[:LABELS_MAX], ordered[LABELS_MAX:]
    if not rest:
        return kept
    columns = list(zip(*(values for _, values in rest), strict=True))
    joins = join or [sum] * len(columns)
    other = [how(column) for how, column in zip(joins, columns, strict=True)]
    return [*kept, ((OTHER,) * len(rest[0][0]), other)]

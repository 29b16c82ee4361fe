"""A limit on labels: the first ones by name keep their label, so that labels are stable; the rest are merged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

LABELS_MAX = 200
OTHER = "other"

Labels = tuple[str, ...]
Rows = Sequence[tuple[Labels, Sequence[float]]]


def bounded(rows: Rows, join: Sequence[Callable[[Iterable[float]], float]] | None = None) -> Rows:
    """`join` defines for each column how the rest are merged; by default they are summed."""
    ordered = sorted(rows, key=lambda row: row[0])
    kept, rest = ordered[:LABELS_MAX], ordered[LABELS_MAX:]
    if not rest:
        return kept
    columns = list(zip(*(values for _, values in rest), strict=True))
    joins = join or [sum] * len(columns)
    other = [how(column) for how, column in zip(joins, columns, strict=True)]
    return [*kept, ((OTHER,) * len(rest[0][0]), other)]

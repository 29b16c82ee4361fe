"""The layout of a trace: its spans as trees, in the order in which they are drawn. Pure: whatever was sent is laid out.

A span whose parent was not sent is the root of its own tree, as is one of a cycle. Spans may share an id: children
belong to the one that began first. What is odd about a span is named in its `notes`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

NO_PARENT, CYCLE = "parent missing", "cycle of parents"
SHARED_ID, SENT_AGAIN = "span id is shared", "sent more than once"
SKEWED, BACKWARDS, UNTIMED = "begins before its parent", "ends before it starts", "no start time"


class SpanEvent(NamedTuple):
    time_ns: int
    name: str
    attributes: Mapping[str, str] = {}


class TraceSpan(NamedTuple):
    """A span as sent; times in nanoseconds since 1970, 0 if none was sent."""

    span_id: str
    parent_id: str
    name: str
    service: str
    kind: str
    start_ns: int
    duration_ns: int
    status: str = "Unset"
    message: str = ""
    events: tuple[SpanEvent, ...] = ()

    @property
    def end_ns(self) -> int:
        return self.start_ns + max(0, self.duration_ns)

    @property
    def is_error(self) -> bool:
        return self.status == "Error"


@dataclass(slots=True)
class SpanRow:
    span: TraceSpan
    depth: int
    notes: list[str] = field(default_factory=list)
    children: int = 0


@dataclass(frozen=True, slots=True)
class Waterfall:
    """Rows in the order of drawing: parents before children, these by their start."""

    rows: Sequence[SpanRow]
    start_ns: int
    end_ns: int

    @property
    def services(self) -> list[str]:
        return sorted({row.span.service for row in self.rows})

    @property
    def errors(self) -> int:
        return sum(row.span.is_error for row in self.rows)

    def place(self, span: TraceSpan, width: int) -> tuple[int, int]:
        """Return where the bar of a span begins and how long it is, in `width` cells: at least one."""
        total = max(1, self.end_ns - self.start_ns)
        start = min(width - 1, max(0, (span.start_ns - self.start_ns) * width // total))
        end = max(start + 1, -(-(span.end_ns - self.start_ns) * width // total))
        return start, min(end, width) - start


def layout(spans: Iterable[TraceSpan]) -> Waterfall:
    """Lay out the spans of one trace, however they were sent."""
    unique, repeated = _unique(spans)
    first: dict[str, int] = {}
    """Of each span id, the span that began first."""
    for at, span in enumerate(unique):
        first.setdefault(span.span_id, at)
    children: dict[int, list[int]] = {}
    roots = []
    for at, span in enumerate(unique):
        parent = first.get(span.parent_id) if span.parent_id else None
        if parent is None or parent == at:
            roots.append(at)
        else:
            children.setdefault(parent, []).append(at)
    rows: list[SpanRow] = []
    seen: set[int] = set()
    for root in roots:
        _walk(root, unique, children, seen, rows)
    for at in range(len(unique)):  # what no root leads to is in a cycle
        if at not in seen:
            before = len(rows)
            _walk(at, unique, children, seen, rows)
            rows[before].notes.append(CYCLE)
    shared = {span.span_id for at, span in enumerate(unique) if first[span.span_id] != at}
    for row in rows:
        _note(row, unique, first, shared, repeated)
    timed = [span for span in unique if span.start_ns > 0]
    start_ns = min((span.start_ns for span in timed), default=0)
    return Waterfall(rows, start_ns, max((span.end_ns for span in timed), default=start_ns))


def _unique(spans: Iterable[TraceSpan]) -> tuple[list[TraceSpan], set[int]]:
    """Return spans by their start, each once, and the identities of those that were sent more than once."""
    counts: dict[tuple[object, ...], int] = {}
    found: dict[tuple[object, ...], TraceSpan] = {}
    for span in spans:
        key = span[:-1]
        counts[key] = counts.get(key, 0) + 1
        found.setdefault(key, span)
    ordered = sorted(found.values(), key=lambda one: (one.start_ns or 1 << 64, -one.duration_ns, one.span_id))
    return ordered, {id(span) for span in ordered if counts[span[:-1]] > 1}


def _walk(
    root: int, spans: Sequence[TraceSpan], children: Mapping[int, Sequence[int]], seen: set[int], rows: list[SpanRow]
) -> None:
    """Without recursion: a trace may be deeper than Python's stack."""
    waiting = [(root, 0)]
    while waiting:
        at, depth = waiting.pop()
        if at in seen:
            continue
        seen.add(at)
        below = children.get(at, ())
        rows.append(SpanRow(spans[at], depth, children=len(below)))
        waiting += [(child, depth + 1) for child in reversed(below)]


def _note(
    row: SpanRow, spans: Sequence[TraceSpan], first: Mapping[str, int], shared: set[str], repeated: set[int]
) -> None:
    span = row.span
    parent = spans[first[span.parent_id]] if span.parent_id in first else None
    if span.parent_id and parent is None:
        row.notes.append(NO_PARENT)
    elif parent is span:
        row.notes.append(CYCLE)
    if span.span_id in shared:
        row.notes.append(SHARED_ID)
    if id(span) in repeated:
        row.notes.append(SENT_AGAIN)
    if span.start_ns <= 0:
        row.notes.append(UNTIMED)
    elif parent is not None and 0 < span.start_ns < parent.start_ns:
        row.notes.append(SKEWED)
    if span.duration_ns < 0:
        row.notes.append(BACKWARDS)

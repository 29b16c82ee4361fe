"""A waterfall on a terminal: a tree of names at the left, a bar for the time of each span at the right.

In a pipe it has a fixed width. Names come from senders, so control characters are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from frazil.cli.telemetry.durations import duration_shown
from frazil.cli.telemetry.waterfall import SpanRow, Waterfall
from frazil.cli.terminal import output
from frazil.cli.terminal.tables import plain_console

PIPE_WIDTH = 160
BAR_SHARE, BAR_WIDTH_MIN = 0.35, 10
INDENT_MAX = 24
"""Deeper spans begin at the same column, with their depth as a number."""
EVENTS_MAX = 20
"""Events of a span that are listed."""


def print_waterfall(found: Waterfall, rows: Sequence[SpanRow], *, events: bool) -> None:
    """Print some rows of a waterfall."""
    console = plain_console(PIPE_WIDTH)
    bar_width = max(BAR_WIDTH_MIN, int(console.width * BAR_SHARE))
    table = Table(box=None, pad_edge=False, header_style="bold", expand=False)
    table.add_column("span", overflow="fold", ratio=1)
    table.add_column("service", overflow="fold")
    table.add_column("duration", justify="right", no_wrap=True)
    table.add_column(f"0 … {duration_shown(found.end_ns - found.start_ns)}", width=bar_width, no_wrap=True)
    for row in rows:
        span = row.span
        style = "red" if span.is_error else ""
        duration = duration_shown(span.duration_ns)
        service = Text(output.fact_shown(span.service))
        table.add_row(_name(row), service, Text(duration, style), _bar(found, row, bar_width))
        for at, event in enumerate(span.events if events else ()):
            if at == EVENTS_MAX:
                table.add_row(Text(f"{_indent(row.depth + 1)}… {len(span.events) - at} more events", "dim"))
                break
            offset = duration_shown(event.time_ns - found.start_ns) if event.time_ns else "-"
            table.add_row(Text(f"{_indent(row.depth + 1)}· {output.fact_shown(event.name)} at {offset}", "dim"))
    console.print(table)


def _indent(depth: int) -> str:
    return "  " * depth if depth <= INDENT_MAX else "  " * INDENT_MAX + f"[{depth}] "


def _name(row: SpanRow) -> Text:
    span = row.span
    text = Text(_indent(row.depth))
    text.append(output.fact_shown(span.name) or "-", "red" if span.is_error else "")
    if span.is_error:
        text.append(f" ERROR{': ' + output.fact_shown(span.message) if span.message else ''}", "bold red")
    if span.events:
        text.append(f" ({output.plural(len(span.events), 'event')})", "dim")
    for note in row.notes:
        text.append(f" [{note}]", "yellow")
    return text


def _bar(found: Waterfall, row: SpanRow, width: int) -> Text:
    span = row.span
    if span.start_ns <= 0:
        return Text("")
    start, length = found.place(span, width)
    cells = [" "] * start + ["━"] * length
    for event in span.events:
        if span.start_ns <= event.time_ns <= span.end_ns:
            at, _ = found.place(span._replace(start_ns=event.time_ns, duration_ns=0), width)
            cells[min(at, len(cells) - 1)] = "◆"
    return Text("".join(cells), "red" if span.is_error else "cyan")

"""The figures of `frazil top` on a screen of any size, or as plain tables without a terminal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from frazil.cli.terminal import output
from frazil.cli.terminal.top_figures import Figures, ServerFigures, TopSubscription, TopTopic

NAME_WIDTH_MIN = 12
_STEPS = ("", "k", "M", "G", "T")


class TopColumn(NamedTuple):
    """`rank` decides which columns are dropped on a narrow screen; rank 0 always stays."""

    heading: str
    shown: Callable[[Any], str]
    rank: int
    width: int


def count_shown(value: float | None) -> str:
    if value is None:
        return "-"
    for step in _STEPS:
        if value < 1_000 or step == _STEPS[-1]:
            return f"{value:.0f}{step}" if not step or value >= 100 else f"{value:.1f}{step}"
        value /= 1_000
    raise AssertionError("the last step takes all")


def _per_second(value: float | None) -> str:
    return "-" if value is None else f"{count_shown(value)}/s"


def _bytes_per_second(value: float | None) -> str:
    return "-" if value is None else f"{output.bytes_shown(round(value))}/s"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} ms"


TOPIC_COLUMNS = (
    TopColumn("topic", lambda one: output.fact_shown(one.topic), 0, NAME_WIDTH_MIN),
    TopColumn("publish", lambda one: _per_second(one.rows_per_second), 0, 8),
    TopColumn("bytes", lambda one: _bytes_per_second(one.bytes_per_second), 2, 12),
    TopColumn("end", lambda one: output.fact_shown(one.end), 3, 12),
    TopColumn("not in table", lambda one: count_shown(one.lag_rows), 0, 12),
    TopColumn("freshness", lambda one: _seconds(one.freshness_seconds), 1, 10),
)
SUBSCRIPTION_COLUMNS = (
    TopColumn("subscription", lambda one: output.fact_shown(one.subscription), 0, NAME_WIDTH_MIN),
    TopColumn("topic", lambda one: output.fact_shown(one.topic), 1, NAME_WIDTH_MIN),
    TopColumn("lag", lambda one: count_shown(one.lag) + (" !" if one.blocked else ""), 0, 8),
    TopColumn("in flight", lambda one: count_shown(one.in_flight), 2, 9),
    TopColumn("acks", lambda one: _per_second(one.acks_per_second), 3, 8),
    TopColumn("redelivered", lambda one: count_shown(one.redeliveries), 2, 11),
    TopColumn("consumers", lambda one: count_shown(one.consumers), 4, 9),
)


def columns_for(columns: Sequence[TopColumn], width: int) -> list[TopColumn]:
    """Return as many columns as fit, the most important first."""
    kept = list(columns)
    while sum(column.width + 1 for column in kept) > width and any(column.rank for column in kept):
        kept.remove(max(kept, key=lambda column: column.rank))
    return kept


def server_lines(address: str, one: ServerFigures, away: str | None) -> list[str]:
    limit = "" if one.disk_limit_bytes is None else f" of {output.bytes_shown(one.disk_limit_bytes)}"
    mover = {None: "-", True: "runs", False: "does not run"}[one.mover_alive]
    state = f"no answer: {away}; trying again" if away else "ready" if one.ready else "not ready: see frazil doctor"
    times = f"ack p50 {_ms(one.ack_p50_ms)}  p99 {_ms(one.ack_p99_ms)}  sync p99 {_ms(one.sync_p99_ms)}"
    lines = [
        f"{address}  {state}",
        f"publish {_per_second(one.rows_per_second)}  {_bytes_per_second(one.bytes_per_second)}  {times}",
        f"disk {output.bytes_shown(one.disk_used_bytes)}{limit}  mover {mover}",
    ]
    return lines if (one.brokers_active or 0) + (one.brokers_gone or 0) < 2 else [*lines, _cluster_line(one)]


def _cluster_line(one: ServerFigures) -> str:
    gone = f", {one.brokers_gone} gone" if one.brokers_gone else ""
    unserved = f"  {one.topics_unserved} without a broker !" if one.topics_unserved else ""
    uneven = "-" if one.load_variation is None else f"{one.load_variation:.0%}"
    leads = "  leads" if one.leads else ""
    topics = f"topics here {count_shown(one.topics_owned)}{unserved}"
    return f"cluster {one.brokers_active} brokers{gone}{leads}  {topics}  load varies by {uneven}"


def screen(address: str, found: Figures, away: str | None, width: int, height: int) -> RenderableType:
    """Render at most the height of the screen, and count the rows that do not fit."""
    lines = server_lines(address, found.server, away)
    style = "bold red" if away else "bold"
    state, *rest = lines
    head = [Text(state, style=style), *(Text(line, no_wrap=True, overflow="ellipsis") for line in rest)]
    used = len(head[0].wrap(Console(width=width), width)) + len(rest)
    room = max(2, height - used - 6)  # two headings, two counts of hidden rows, two empty lines
    for_topics = min(len(found.topics), max(room - min(len(found.subscriptions), room // 2), 1))
    parts: list[RenderableType] = [*head, "", *_table(TOPIC_COLUMNS, found.topics, width, for_topics, "topics")]
    if found.subscriptions:
        for_rest = max(1, room - for_topics)
        parts += ["", *_table(SUBSCRIPTION_COLUMNS, found.subscriptions, width, for_rest, "subscriptions")]
    return Group(*parts)


def _table(
    columns: Sequence[TopColumn],
    found: Sequence[TopTopic | TopSubscription],
    width: int,
    rows_max: int,
    what: str,
) -> list[RenderableType]:
    if not found:
        return [Text(f"no {what} yet")]
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold", expand=True)
    shown = columns_for(columns, width)
    for number, column in enumerate(shown):
        is_name = column.width == NAME_WIDTH_MIN and (number == 0 or column.heading == "topic")
        table.add_column(
            column.heading,
            justify="left" if is_name else "right",
            no_wrap=True,
            overflow="ellipsis",
            ratio=1 if is_name else None,
        )
    for one in found[:rows_max]:
        table.add_row(*(escape(column.shown(one)) for column in shown))
    rest = len(found) - rows_max
    return [table, Text(f"and {rest} more {what}")] if rest > 0 else [table]


def print_plain(address: str, found: Figures, time: str) -> None:
    """Print everything, one scrape after another, for a pipe or a file."""
    print("\n".join([time, *server_lines(address, found.server, None)]))
    _print_table(TOPIC_COLUMNS, found.topics)
    _print_table(SUBSCRIPTION_COLUMNS, found.subscriptions)
    print(flush=True)


def _print_table(columns: Sequence[TopColumn], found: Sequence[TopTopic | TopSubscription]) -> None:
    if found:
        headings = [column.heading for column in columns]
        right = [name for name in headings if name not in ("topic", "subscription")]
        output.print_table(headings, [[column.shown(one) for column in columns] for one in found], right=right)

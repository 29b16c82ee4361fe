"""The layout of a trace: whatever was sent is drawn once, parents before children."""

from __future__ import annotations

import random

import pytest

from frazil.cli.telemetry.durations import duration_shown
from frazil.cli.telemetry.waterfall import (
    BACKWARDS,
    CYCLE,
    NO_PARENT,
    SENT_AGAIN,
    SHARED_ID,
    SKEWED,
    UNTIMED,
    TraceSpan,
    Waterfall,
    layout,
)

T0 = 1_000_000


def span(name: str, parent: str = "", start: int = 0, duration: int = 100, **more: object) -> TraceSpan:
    one = TraceSpan(name, parent, name, "shop", "Internal", T0 + start, duration)
    return one._replace(**more)


def drawn(found: Waterfall) -> list[tuple[str, int, list[str]]]:
    return [(row.span.name, row.depth, row.notes) for row in found.rows]


def test_children_follow_their_parent_in_the_order_of_their_start() -> None:
    found = layout([span("c", "a", 30), span("d", "b", 25), span("b", "a", 20), span("a")])
    assert drawn(found) == [("a", 0, []), ("b", 1, []), ("d", 2, []), ("c", 1, [])]
    assert [row.children for row in found.rows] == [2, 1, 0, 0]
    assert (found.start_ns, found.end_ns) == (T0, T0 + 130)


def test_spans_without_their_parent_are_roots_that_say_so() -> None:
    found = layout([span("a"), span("lost", "gone", 5), span("below", "lost", 6)])
    assert drawn(found) == [("a", 0, []), ("lost", 0, [NO_PARENT]), ("below", 1, [])]


@pytest.mark.parametrize("parents", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b", "b": "c", "c": "a", "d": "a"}])
def test_cycles_end(parents: dict[str, str]) -> None:
    found = layout([span(name, parent, at) for at, (name, parent) in enumerate(parents.items())])
    assert sorted(row.span.name for row in found.rows) == sorted(parents)
    assert [row.span.name for row in found.rows if CYCLE in row.notes] == ["a"]


def test_spans_of_one_id_are_all_drawn_and_children_belong_to_the_first() -> None:
    client, server = span("x", start=0), span("x", start=10, kind="Server", service="bank")
    found = layout([server, client, span("below", "x", 20)])
    assert drawn(found) == [("x", 0, [SHARED_ID]), ("below", 1, []), ("x", 0, [SHARED_ID])]
    assert found.services == ["bank", "shop"]


def test_a_span_that_was_sent_again_is_drawn_once() -> None:
    assert drawn(layout([span("a"), span("b", "a", 1), span("b", "a", 1)])) == [("a", 0, []), ("b", 1, [SENT_AGAIN])]


def test_clocks_that_differ_and_times_that_are_wrong_are_named() -> None:
    found = layout(
        [span("a", start=50), span("early", "a", 40), span("back", "a", 60, -5), span("never", "a", -T0, 10)]
    )
    assert drawn(found) == [
        ("a", 0, []), ("early", 1, [SKEWED]), ("back", 1, [BACKWARDS]), ("never", 1, [UNTIMED])
    ]  # fmt: skip
    assert (found.start_ns, found.end_ns) == (T0 + 40, T0 + 150)


def test_an_empty_trace_and_one_without_times() -> None:
    assert layout([]).rows == []
    found = layout([span("a", start=-T0, duration=0)])
    assert (found.start_ns, found.end_ns, found.place(found.rows[0].span, 10)) == (0, 0, (0, 1))


def test_bars_stay_within_their_width() -> None:
    rng = random.Random(7)
    spans = [span(str(n), "", rng.randrange(1_000), rng.randrange(-5, 1_000)) for n in range(200)]
    found = layout(spans)
    for row in found.rows:
        for width in (1, 10, 57):
            start, length = found.place(row.span, width)
            assert 0 <= start < width
            assert 1 <= length <= width - start
    first = min(spans, key=lambda one: one.start_ns)
    assert found.place(first, 57)[0] == 0


def test_a_trace_deeper_than_pythons_stack_is_laid_out() -> None:
    found = layout([span(str(n), str(n - 1) if n else "", n) for n in range(20_000)])
    assert [row.depth for row in found.rows] == list(range(20_000))


def test_random_parents_lose_no_span() -> None:
    rng = random.Random(5)
    for _ in range(50):
        count = rng.randrange(1, 60)
        spans = [span(str(n), rng.choice(["", *map(str, range(count + 3))]), n) for n in range(count)]
        found = layout(spans)
        assert sorted(row.span.name for row in found.rows) == sorted(one.name for one in spans)


@pytest.mark.parametrize(
    ("duration", "shown"),
    [(0, "0 ns"), (999, "999 ns"), (1_250, "1.25 µs"), (12_500_000, "12.5 ms"), (3_000_000_000, "3.00 s"),
     (90_000_000_000, "1.50 min"), (7_200_000_000_000, "2.0 h"), (-1_500, "-1.50 µs")],
)  # fmt: skip
def test_durations_have_three_digits(duration: int, shown: str) -> None:
    assert duration_shown(duration) == shown

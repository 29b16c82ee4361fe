"""What `frazil top` reckons from two looks, and how it fits a screen."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from frazil.cli.terminal.top_figures import Figures, figures, parse, quantile, rate
from frazil.cli.terminal.top_view import SUBSCRIPTION_COLUMNS, TOPIC_COLUMNS, columns_for, count_shown, screen

BEFORE = """
# TYPE frazil_log_rows counter
frazil_log_rows_total 100
# TYPE frazil_topic_end_offset gauge
frazil_topic_end_offset{topic="/a/busy"} 10
frazil_topic_end_offset{topic="/a/quiet"} 5
# TYPE frazil_log_ack_seconds histogram
frazil_log_ack_seconds_bucket{le="0.001"} 1000
frazil_log_ack_seconds_bucket{le="0.01"} 1000
frazil_log_ack_seconds_bucket{le="+Inf"} 1000
"""
NOW = """
# TYPE frazil_log_rows counter
frazil_log_rows_total 300
# TYPE frazil_topic_end_offset gauge
frazil_topic_end_offset{topic="/a/quiet"} 5
frazil_topic_end_offset{topic="/a/busy"} 210
# TYPE frazil_log_ack_seconds histogram
frazil_log_ack_seconds_bucket{le="0.001"} 1050
frazil_log_ack_seconds_bucket{le="0.01"} 1100
frazil_log_ack_seconds_bucket{le="+Inf"} 1100
# TYPE frazil_subscription_in_flight_messages gauge
frazil_subscription_in_flight_messages{topic="/a/busy",subscription="s"} 3
# TYPE frazil_subscription_lag_messages gauge
frazil_subscription_lag_messages{topic="/a/busy",subscription="s"} 70
"""


def test_rates_are_of_the_time_between_two_looks_and_the_busiest_comes_first() -> None:
    found = figures(parse(BEFORE, 10.0), parse(NOW, 12.0))
    assert found.server.rows_per_second == 100
    assert [(one.topic, one.rows_per_second, one.end) for one in found.topics] == [
        ("/a/busy", 100, 210), ("/a/quiet", 0, 5),
    ]  # fmt: skip
    (one,) = found.subscriptions
    assert (one.topic, one.subscription, one.lag, one.in_flight) == ("/a/busy", "s", 70, 3)


def test_one_look_has_no_rates_and_a_figure_that_is_not_there_is_none() -> None:
    found = figures(None, parse(NOW, 12.0))
    assert found.server.rows_per_second is None
    assert found.server.ack_p99_ms is None
    assert found.topics[0].freshness_seconds is None
    assert found.subscriptions[0].redeliveries is None


def test_a_counter_that_went_back_has_no_rate() -> None:
    assert rate(parse(NOW, 1.0), parse(BEFORE, 2.0), "frazil_log_rows_total") is None
    assert quantile(parse(NOW, 1.0), parse(BEFORE, 2.0), "frazil_log_ack_seconds", 0.5) is None


def test_quantiles_are_of_what_came_between_the_looks_alone() -> None:
    before, now = parse(BEFORE, 1.0), parse(NOW, 2.0)
    assert quantile(before, now, "frazil_log_ack_seconds", 0.25) == pytest.approx(0.0005)
    assert quantile(before, now, "frazil_log_ack_seconds", 0.5) == pytest.approx(0.001)
    assert quantile(before, now, "frazil_log_ack_seconds", 0.75) == pytest.approx(0.0055)
    assert quantile(now, now, "frazil_log_ack_seconds", 0.5) is None


@pytest.mark.parametrize("columns", [TOPIC_COLUMNS, SUBSCRIPTION_COLUMNS])
@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_a_narrow_screen_leaves_out_columns_and_keeps_what_matters(columns: tuple, width: int) -> None:  # type: ignore[type-arg]
    kept = columns_for(columns, width)
    assert [one for one in columns if one.rank == 0] == [one for one in kept if one.rank == 0]
    assert len(kept) == len(columns) or width < 80
    assert kept == sorted(kept, key=columns.index)


@pytest.mark.parametrize(("width", "height"), [(30, 12), (80, 24), (200, 60)])
def test_a_screen_is_never_left_however_many_topics_there_are(width: int, height: int) -> None:
    text = "\n".join(
        [
            *(f'frazil_topic_end_offset{{topic="/many/topic-{number}"}} {number}' for number in range(300)),
            *(
                f'frazil_subscription_in_flight_messages{{topic="/many/a",subscription="s{number}"}} {number}'
                for number in range(300)
            ),
        ]
    )
    shown = drawn(figures(None, parse(text, 1.0)), width, height)
    assert len(shown) <= height
    assert all(len(line) <= width for line in shown)
    assert any("more topics" in line for line in shown)
    assert any("more subscriptions" in line for line in shown)


def test_a_name_cannot_speak_to_the_terminal() -> None:
    text = 'frazil_topic_end_offset{topic="[red]\x1b[2J"} 1'
    assert "\\x1b[2J" in "\n".join(drawn(figures(None, parse(text, 1.0)), 80, 24))


def drawn(found: Figures, width: int, height: int) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, force_terminal=False)
    console.print(screen("http://127.0.0.1:6680", found, None, width, height))
    return out.getvalue().rstrip("\n").split("\n")


def test_counts_are_short() -> None:
    assert [count_shown(one) for one in (None, 0, 999, 1_234, 123_456, 5_000_000, 7e15)] == [
        "-", "0", "999", "1.2k", "123k", "5.0M", "7000T",
    ]  # fmt: skip

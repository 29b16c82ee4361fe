"""One back-off formula for every retry: it doubles, it is bounded, and it keeps its unit."""

from __future__ import annotations

from frazil.core.backoff import backoff, jittered


def test_the_delay_doubles_from_the_first_to_the_limit() -> None:
    assert [backoff(failures, first=0.1, limit=0.5) for failures in (1, 2, 3, 4, 50)] == [0.1, 0.2, 0.4, 0.5, 0.5]


def test_whole_numbers_stay_whole() -> None:
    delay_us = backoff(3, first=500_000, limit=30_000_000)
    assert delay_us == 2_000_000
    assert isinstance(delay_us, int)


def test_a_first_delay_above_the_limit_is_the_limit() -> None:
    assert backoff(1, first=10.0, limit=2.0) == 2.0


def test_many_failures_do_not_overflow() -> None:
    assert backoff(10**9, first=0.05, limit=5.0) == 5.0


def test_jitter_takes_away_at_most_half() -> None:
    delays = [jittered(2.0) for _ in range(1_000)]
    assert 1.0 <= min(delays) < 1.1
    assert 1.9 < max(delays) <= 2.0

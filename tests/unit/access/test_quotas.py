"""Quotas: each caller has its own, a large batch is paid back, and nothing is remembered without a bound."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from frazil.core.errors import QuotaExceeded
from frazil.core.principal import LOCAL, Principal
from frazil.core.settings.security import QuotaSettings
from frazil.node.access.quotas import Quotas
from frazil.testing.clock import FakeClock

ALICE, BOB = Principal("key:alice"), Principal("key:bob")
SECOND_US = 1_000_000


def quotas(clock: FakeClock, tracked_max: int = 100, **limits: int) -> Quotas:
    return Quotas(QuotaSettings(**limits), {}, clock, tracked_max)


def test_requests_are_limited_by_the_second_with_a_hint_that_holds() -> None:
    clock = FakeClock()
    limited = quotas(clock, requests_per_second=5)
    for _ in range(5):
        limited.request(ALICE)
    with pytest.raises(QuotaExceeded) as refused:
        limited.request(ALICE)
    assert refused.value.fields == {
        "principal": "key:alice",
        "quota": "requests_per_second",
        "limit": 5,
        "retry_after_ms": 200,
    }
    clock.advance(199_000)
    with pytest.raises(QuotaExceeded):
        limited.request(ALICE)
    clock.advance(1_000)
    limited.request(ALICE)


def test_a_noisy_caller_does_not_limit_another() -> None:
    limited = quotas(FakeClock(), requests_per_second=1)
    limited.request(ALICE)
    with pytest.raises(QuotaExceeded):
        limited.request(ALICE)
    limited.request(BOB)


def test_a_rest_gives_one_second_and_no_more() -> None:
    clock = FakeClock()
    limited = quotas(clock, requests_per_second=3)
    clock.advance(3600 * SECOND_US)
    for _ in range(3):
        limited.request(ALICE)
    with pytest.raises(QuotaExceeded):
        limited.request(ALICE)


def test_a_batch_larger_than_the_bucket_is_taken_when_it_is_full_and_paid_back() -> None:
    clock = FakeClock()
    limited = quotas(clock, bytes_per_second=1_000)
    limited.transfer(ALICE, 5_000)
    with pytest.raises(QuotaExceeded) as refused:
        limited.transfer(ALICE, 1)
    assert refused.value.retry_after_ms == 4_001
    clock.advance(4_001_000)
    limited.transfer(ALICE, 1)
    with pytest.raises(QuotaExceeded) as refused:
        limited.transfer(ALICE, 5_000)
    clock.advance(refused.value.retry_after_ms * 1_000)
    limited.transfer(ALICE, 5_000)


def test_a_refused_batch_costs_nothing() -> None:
    limited = quotas(FakeClock(), bytes_per_second=100)
    limited.transfer(ALICE, 60)
    for _ in range(10):
        with pytest.raises(QuotaExceeded):
            limited.transfer(ALICE, 41)
    limited.transfer(ALICE, 40)


def test_streams_are_counted_while_they_are_open() -> None:
    limited = quotas(FakeClock(), connections=2)
    with ExitStack() as opened:
        for who in (ALICE, ALICE, BOB):
            opened.enter_context(limited.stream(who))
        with pytest.raises(QuotaExceeded, match="connections = 2"):
            opened.enter_context(limited.stream(ALICE))
    with pytest.raises(RuntimeError), limited.stream(ALICE):
        raise RuntimeError
    with limited.stream(ALICE), limited.stream(ALICE):
        pass


def test_a_principal_of_its_own_replaces_the_default() -> None:
    own = {"key:bob": QuotaSettings(bytes_per_second=10)}
    limited = Quotas(QuotaSettings(requests_per_second=1), own, FakeClock())
    limited.request(ALICE)
    with pytest.raises(QuotaExceeded):
        limited.request(ALICE)
    for _ in range(10):
        limited.request(BOB)
    limited.transfer(BOB, 10)
    with pytest.raises(QuotaExceeded):
        limited.transfer(BOB, 1)


def test_this_process_is_never_limited() -> None:
    limited = quotas(FakeClock(), requests_per_second=1, bytes_per_second=1, connections=1, topics=1, stored_bytes=1)
    for _ in range(10):
        limited.request(LOCAL)
        limited.transfer(LOCAL, 100)
        limited.check_topic(LOCAL, 100)
        limited.check_stored(LOCAL, 100)
    with limited.stream(LOCAL), limited.stream(LOCAL):
        pass
    assert limited.tracked == 0


def test_a_caller_that_is_only_named_local_is_limited() -> None:
    limited = quotas(FakeClock(), requests_per_second=1)
    false = Principal("key:local")
    limited.request(false)
    with pytest.raises(QuotaExceeded):
        limited.request(false)


def test_topics_and_stored_bytes_are_refused_at_their_limit() -> None:
    limited = quotas(FakeClock(), topics=2, stored_bytes=100)
    limited.check_topic(ALICE, 1)
    with pytest.raises(QuotaExceeded, match="topics = 2"):
        limited.check_topic(ALICE, 2)
    limited.check_stored(ALICE, 99)
    with pytest.raises(QuotaExceeded, match="stored_bytes = 100"):
        limited.check_stored(ALICE, 100)


def test_no_limits_cost_no_memory_and_idle_callers_are_forgotten() -> None:
    clock = FakeClock()
    free = quotas(clock)
    for number in range(1_000):
        free.request(Principal(f"key:{number}"))
    assert free.tracked == 0
    limited = quotas(clock, tracked_max=10, requests_per_second=1, connections=5)
    with limited.stream(ALICE):
        for number in range(1_000):
            limited.request(Principal(f"key:{number}"))
            clock.advance(SECOND_US)
        assert limited.tracked == 10
        with ExitStack() as opened:
            for _ in range(4):
                opened.enter_context(limited.stream(ALICE))
            with pytest.raises(QuotaExceeded):
                opened.enter_context(limited.stream(ALICE))


def test_a_caller_in_debt_is_not_forgotten_before_an_idle_one() -> None:
    clock = FakeClock()
    limited = quotas(clock, tracked_max=3, bytes_per_second=10)
    limited.transfer(ALICE, 1_000_000)
    for number in range(20):
        limited.transfer(Principal(f"key:{number}"), 1)
        clock.advance(SECOND_US)
    with pytest.raises(QuotaExceeded):
        limited.transfer(ALICE, 1)

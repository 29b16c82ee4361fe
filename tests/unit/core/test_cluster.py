"""Values about a cluster."""

from __future__ import annotations

import pytest

from frazil.core.cluster import Balance, BrokerInfo, BrokerState, DrainReport, broker_number


def broker(name: str, load: float, state: BrokerState = BrokerState.ACTIVE) -> BrokerInfo:
    return BrokerInfo(name, {}, state, topics=1, load=load)


def test_a_brokers_number_is_its_own_and_stays() -> None:
    assert broker_number("b1") == BrokerInfo("b1", {}).number == 9_063_898_283_772_224_485
    assert len({broker_number(f"b{i}") for i in range(1_000)}) == 1_000
    assert 0 <= broker_number("b1") < 2**64


def test_the_balance_counts_active_brokers_alone() -> None:
    brokers = (broker("a", 2), broker("b", 6), broker("c", 100, BrokerState.DRAINING), broker("d", 9, BrokerState.GONE))
    balance = Balance(brokers)
    assert (balance.mean, balance.min, balance.max, balance.deviation) == (4, 2, 6, 2)
    assert balance.variation == pytest.approx(0.5)
    assert balance.is_overloaded(brokers[1])
    assert balance.is_underloaded(brokers[0])


def test_a_cluster_without_load_is_balanced() -> None:
    assert Balance((broker("a", 0), broker("b", 0))).variation == 0
    assert Balance(()).variation == 0


def test_a_drain_reports_what_is_pending() -> None:
    assert DrainReport("a", 5, 2, {"/a/b": "slow"}).pending == 2

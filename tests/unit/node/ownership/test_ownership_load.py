"""The load of topics, and when others are told of it."""

from __future__ import annotations

import pytest

from frazil.core.names import TopicName
from frazil.meta.cluster_keys import LoadsRecord
from frazil.node.ownership.moves.load import LISTED_MAX, TRAFFIC_BYTES_S, WINDOW_S, TrafficLoads, differs

HEAVY, LIGHT = TopicName("default", "heavy"), TopicName("default", "light")


def test_steady_traffic_counts_by_its_rate_and_is_forgotten_when_it_ends() -> None:
    loads = TrafficLoads()
    for _ in range(60):
        loads.add({HEAVY: 10 * 30 * TRAFFIC_BYTES_S, LIGHT: 10 * TRAFFIC_BYTES_S // 50}, 10)
    record = loads.record()
    assert record.topics == {str(HEAVY): pytest.approx(30, rel=0.01)}
    assert record.rest == pytest.approx(0.02, abs=0.005)
    loads.add({}, 20 * WINDOW_S)
    assert loads.record() == LoadsRecord()
    assert not loads._loads


def test_only_the_heaviest_topics_are_listed() -> None:
    loads = TrafficLoads()
    loads.add({TopicName("n", f"t{one}"): TRAFFIC_BYTES_S * 1_000 * (one + 1) for one in range(LISTED_MAX + 5)}, 10)
    record = loads.record()
    assert len(record.topics) == LISTED_MAX
    assert "/n/t4" not in record.topics
    assert record.rest > 0


def test_others_are_told_of_what_changes_a_plan() -> None:
    before = LoadsRecord({"/a/b": 50.0})
    assert differs(None, LoadsRecord())
    assert not differs(before, LoadsRecord({"/a/b": 50.5}))
    assert differs(before, LoadsRecord({"/a/b": 60.0}))
    assert differs(before, LoadsRecord({"/a/c": 50.0}))
    assert not differs(LoadsRecord(), LoadsRecord({}, 0.5))

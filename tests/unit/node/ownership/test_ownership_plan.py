"""Where topics go, by their loads alone."""

from __future__ import annotations

from collections.abc import Mapping

import hypothesis.strategies as st
import pytest
from hypothesis import given

from frazil.core.cluster import Balance, BrokerInfo, BrokerState, PlannedMove
from frazil.core.names import TopicName
from frazil.node.ownership.moves.plan import least_loaded, next_drained, place, rebalance


def topic(number: int) -> TopicName:
    return TopicName("default", f"t{number:03}")


def broker(name: str, load: float = 0.0, state: BrokerState = BrokerState.ACTIVE) -> BrokerInfo:
    return BrokerInfo(name, {"flight": name}, state, int(load), load)


class Cluster:
    """Brokers with their topics, and the load of each."""

    def __init__(self, loads: Mapping[str, list[float]]) -> None:
        self.topics: dict[str, list[TopicName]] = {}
        self.loads: dict[TopicName, float] = {}
        for name, own in loads.items():
            self.topics[name] = [topic(len(self.loads) + number) for number in range(len(own))]
            self.loads |= dict(zip(self.topics[name], own, strict=True))

    def balance(self, **states: BrokerState) -> Balance:
        return Balance(
            tuple(
                broker(name, sum(self.loads[one] for one in own), states.get(name, BrokerState.ACTIVE))
                for name, own in self.topics.items()
            )
        )

    def plan(self, threshold: float = 0.0, moves_max: int = 1_000, **states: BrokerState) -> list[PlannedMove]:
        return rebalance(
            self.balance(**states),
            self.topics.__getitem__,
            self.loads.__getitem__,
            threshold=threshold,
            moves_max=moves_max,
        )

    def make(self, moves: list[PlannedMove]) -> None:
        for move in moves:
            self.topics[move.from_broker].remove(move.topic)
            self.topics[move.to_broker].append(move.topic)


def test_topics_go_to_the_broker_with_the_least_load_heavy_ones_first() -> None:
    loads = {topic(1): 1.0, topic(2): 5.0, topic(3): 1.0}
    placed = place(loads, [broker("a", 1), broker("b", 2), broker("c", 6.5)], loads.__getitem__)
    assert placed == {topic(2): "a", topic(1): "b", topic(3): "b"}


def test_without_a_broker_nothing_is_placed() -> None:
    assert place([topic(1)], [], lambda _: 1.0) == {}
    assert least_loaded([]) is None


def test_of_brokers_with_equal_load_the_first_name_is_taken() -> None:
    assert least_loaded([broker("b", 1), broker("a", 1), broker("c", 2)]) == broker("a", 1)


def test_a_new_broker_gets_its_share() -> None:
    cluster = Cluster({"a": [1.0] * 6, "b": [1.0] * 6, "c": []})
    cluster.make(cluster.plan())
    assert [len(own) for own in cluster.topics.values()] == [4, 4, 4]


def test_below_the_threshold_nothing_moves_and_above_it_moves_go_on_to_half_of_it() -> None:
    cluster = Cluster({"a": [1.0] * 12, "b": [1.0] * 10})
    assert cluster.balance().variation == pytest.approx(1 / 11)
    assert cluster.plan(threshold=0.1) == []
    assert len(cluster.plan(threshold=0.09)) == 1


def test_a_topic_that_would_only_turn_the_difference_around_stays() -> None:
    assert Cluster({"a": [1.0], "b": []}).plan() == []
    assert Cluster({"a": [9.0, 0.5], "b": []}).plan()[0].load == 0.5


def test_only_active_brokers_take_part() -> None:
    cluster = Cluster({"a": [1.0] * 4, "b": [], "c": [1.0] * 9})
    moves = cluster.plan(c=BrokerState.DRAINING)
    assert {(move.from_broker, move.to_broker) for move in moves} == {("a", "b")}
    assert cluster.plan(b=BrokerState.GONE, c=BrokerState.GONE) == []


def test_fixed_topics_stay_and_only_targets_get_topics() -> None:
    cluster = Cluster({"a": [1.0] * 4, "b": [], "c": []})
    moves = rebalance(
        cluster.balance(),
        cluster.topics.__getitem__,
        cluster.loads.__getitem__,
        threshold=0.0,
        moves_max=9,
        is_target=lambda one: one.broker_id == "c",
        fixed=cluster.topics["a"][:3],
    )
    assert [(move.topic, move.to_broker) for move in moves] == [(cluster.topics["a"][3], "c")]


def test_few_topics_of_a_draining_broker_move_at_once() -> None:
    topics = [topic(number) for number in range(5)]
    assert next_drained(topics, [], 2) == topics[:2]
    assert next_drained(topics, topics[:1], 2) == topics[1:2]
    assert next_drained(topics, topics[:3], 2) == []


@given(st.lists(st.lists(st.floats(0.01, 50), max_size=8), min_size=1, max_size=5), st.integers(1, 20))
def test_each_plan_makes_the_balance_better_until_there_is_nothing_left_to_plan(
    loads: list[list[float]], most: int
) -> None:
    cluster = Cluster({f"b{number}": own for number, own in enumerate(loads)})
    for _ in range(100):
        moves, before = cluster.plan(moves_max=most), cluster.balance().deviation
        assert len({move.topic for move in moves}) == len(moves) <= most
        if not moves:
            return
        cluster.make(moves)
        assert cluster.balance().deviation < before
    raise AssertionError("topics move for ever")

"""Who gets a message, by the type of the subscription."""

from __future__ import annotations

from collections import Counter

from frazil.broker.delivery.assignment import (
    ActiveConsumer,
    Assignment,
    HashRing,
    Kind,
    Member,
    RoundRobin,
    assignment_of,
)


def connected(assignment: Assignment, count: int) -> list[Member]:
    members = [Member(f"c{number}") for number in range(count)]
    for member in members:
        assignment.connected(member)
    return members


def test_each_type_has_its_assignment() -> None:
    kinds = [type(assignment_of(kind)) for kind in Kind]
    assert kinds == [ActiveConsumer, RoundRobin, ActiveConsumer, HashRing]


def test_the_active_consumer_gets_everything_until_it_leaves() -> None:
    active = ActiveConsumer()
    assert active.pick(b"", 10) is None
    first, second = connected(active, 2)
    assert {active.pick(b"", 10) for _ in range(5)} == {first}
    active.disconnected(first)
    assert active.pick(b"", 10) is second
    active.connected(first)
    assert active.pick(b"", 10) is second, "who comes back stands by"


def test_shares_are_equal_also_when_one_comes_or_goes() -> None:
    turn = RoundRobin()
    three = connected(turn, 3)
    assert [turn.pick(b"", 30) for _ in range(6)] == three * 2
    turn.pick(b"", 30)
    turn.disconnected(three[1])
    assert [turn.pick(b"", 30) for _ in range(3)] == [three[2], three[0], three[2]], "the turn is kept"


def test_a_consumer_with_its_fair_share_in_flight_is_passed_over() -> None:
    turn = RoundRobin()
    slow, quick = connected(turn, 2)
    slow.in_flight.update(range(5))
    assert {turn.pick(b"", 10) for _ in range(3)} == {quick}
    quick.in_flight.update(range(5, 10))
    assert turn.pick(b"", 10) is None


def test_a_key_stays_with_its_consumer_and_few_move_when_one_comes_or_goes() -> None:
    ring = HashRing()
    connected(ring, 3)
    keys = [f"user-{number}".encode() for number in range(600)]
    before = {key: ring.pick(key, 10) for key in keys}
    assert before == {key: ring.pick(key, 10) for key in keys}
    assert min(Counter(one.name for one in before.values() if one).values()) > 100, "shares are about equal"
    fourth = Member("c3")
    ring.connected(fourth)
    after = {key: ring.pick(key, 10) for key in keys}
    assert {after[key] for key in keys if after[key] is not before[key]} == {fourth}, "keys go only to the one who came"
    ring.disconnected(fourth)
    assert before == {key: ring.pick(key, 10) for key in keys}


def test_filters_say_which_keys_a_consumer_accepts() -> None:
    ring = HashRing()
    eu, us = Member("eu", ("eu-*",)), Member("us", ("us-?", "usa"))
    ring.connected(eu)
    ring.connected(us)
    assert {ring.pick(f"eu-{number}".encode(), 10) for number in range(20)} == {eu}
    assert {ring.pick(key, 10) for key in (b"us-1", b"usa")} == {us}
    assert ring.pick(b"us-12", 10) is None
    assert ring.pick(b"asia", 10) is None

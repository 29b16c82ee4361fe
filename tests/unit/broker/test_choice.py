"""Who gets a message, by the type of the subscription."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timezone

from frazil.broker.choice import ByKey, InTurn, Kind, One, choice_of
from frazil.broker.consumer import Consumer
from frazil.broker.entry import Entry
from frazil.core.rows import Message

NOW = datetime(2026, 11, 16, tzinfo=timezone.utc)


def entry(key: str | None = None, producer: str = "p") -> Entry:
    return Entry(Message(0, NOW, NOW, b"", None if key is None else key.encode(), {}, producer))


def consumers(count: int) -> list[Consumer]:
    return [Consumer(f"c{number}", number + 1) for number in range(count)]


def test_each_type_has_its_way() -> None:
    kinds = [type(choice_of(kind)) for kind in Kind]
    assert kinds == [One, InTurn, One, ByKey]


def test_the_first_takes_all() -> None:
    one, (first, second) = One(), consumers(2)
    assert one.pick(entry(), 10) is None
    one.changed([first, second])
    assert {one.pick(entry(), 10) for _ in range(5)} == {first}
    one.changed([second])
    assert one.pick(entry(), 10) is second


def test_shares_are_equal_also_when_one_comes_or_goes() -> None:
    turn, three = InTurn(), consumers(3)
    turn.changed(three)
    assert [turn.pick(entry(), 30) for _ in range(6)] == three * 2
    turn.pick(entry(), 30)
    turn.changed([three[0], three[2]])
    assert [turn.pick(entry(), 30) for _ in range(3)] == [three[2], three[0], three[2]], "the turn is kept"


def test_who_holds_a_fair_part_is_passed_over() -> None:
    turn, (slow, quick) = InTurn(), consumers(2)
    turn.changed([slow, quick])
    slow.in_flight.update(range(5))
    assert {turn.pick(entry(), 10) for _ in range(3)} == {quick}
    quick.in_flight.update(range(5, 10))
    assert turn.pick(entry(), 10) is None


def test_a_key_stays_with_its_consumer_and_few_move_when_one_comes() -> None:
    ring, four = ByKey(), consumers(4)
    ring.changed(four[:3])
    keys = [f"user-{number}" for number in range(600)]
    before = {key: ring.pick(entry(key), 10) for key in keys}
    assert before == {key: ring.pick(entry(key), 10) for key in keys}
    assert min(Counter(one.name for one in before.values() if one).values()) > 100, "shares are about equal"
    ring.changed(four)
    after = {key: ring.pick(entry(key), 10) for key in keys}
    moved = [key for key in keys if after[key] is not before[key]]
    assert {after[key] for key in moved} == {four[3]}, "keys go only to the one who came"


def test_without_a_key_the_producer_is_the_key() -> None:
    ring = ByKey()
    ring.changed(consumers(5))
    assert len({ring.pick(entry(producer="p7"), 10) for _ in range(5)}) == 1


def test_filters_say_which_keys_one_wants() -> None:
    ring = ByKey()
    eu, us = Consumer("eu", 1, ["eu-*"]), Consumer("us", 2, ["us-?", "usa"])
    ring.changed([eu, us])
    assert {ring.pick(entry(f"eu-{number}"), 10) for number in range(20)} == {eu}
    assert {ring.pick(entry(key), 10) for key in ("us-1", "usa")} == {us}
    assert ring.pick(entry("us-12"), 10) is None
    assert not ring.wanted(entry("asia"))

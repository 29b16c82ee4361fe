"""Frazil's own client in a cluster: it begins at any broker, follows topics to their owners, and doubles nothing."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

import frazil
from frazil import aio
from frazil.client.connection import ASKED_US_MIN
from frazil.core.names import TopicName
from frazil.core.partitions import partition_names
from parts.cluster import Brokers, brokers
from parts.processes import free_port, pause

TOPIC = "/default/orders"
MOVES, ROWS = 8, 400


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Brokers]:
    with brokers(tmp_path / "data") as found:
        found.node.storage.create_topic(TOPIC)
        found.cluster.give(TOPIC, "a")
        yield found


class Moving:
    """Gives the topic to the other broker again and again, until its block ends."""

    def __init__(self, two: Brokers, pause_seconds: float = 0.1) -> None:
        self._two = two
        self._pause_seconds = pause_seconds
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._move)
        self.moves = 0

    def _move(self) -> None:
        for owner in itertools.cycle("ba"):
            if self._ends.wait(self._pause_seconds):
                return
            self._two.cluster.give(TOPIC, owner)
            self.moves += 1

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()


def payloads(two: Brokers) -> list[bytes]:
    return [message.payload for message in two.node.storage.topic(TOPIC).read()]


def test_a_client_begins_at_any_broker(two: Brokers) -> None:
    with frazil.connect(two["b"].flight) as client:
        topic = client.topic(TOPIC)
        assert topic.publish("tea") == 0
        assert [message.payload for message in topic.read()] == [b"tea"]
        assert topic.stats().end == 1
        assert client.topics() == [TOPIC]
        with pytest.raises(frazil.TopicExists):
            client.create_topic(TOPIC)
        made = client.topic("/default/made")
        assert made.publish("x") == 0
        client.delete_topic(TOPIC)
    assert two.node.storage.topics() == ["/default/made"]


def test_nothing_is_lost_or_doubled_while_a_topic_moves(two: Brokers) -> None:
    with frazil.connect(two["b"].flight, producer="p") as client, Moving(two) as moving:
        topic = client.topic(TOPIC)
        offsets: list[int] = []
        for number in itertools.count():
            offsets.append(topic.publish(b"%d" % number))
            if number >= ROWS and moving.moves >= MOVES:
                break
    assert offsets == list(range(len(offsets)))
    assert payloads(two) == [b"%d" % number for number in range(len(offsets))]


def test_batches_in_flight_are_stored_once(two: Brokers) -> None:
    async def work() -> int:
        client = await aio.connect([two["a"].flight, two["b"].flight], producer="p")
        try:
            topic = await client.topic(TOPIC)
            with Moving(two) as moving:
                sent = 0
                while sent < 50 * ROWS or moving.moves < MOVES:
                    many = [
                        topic.publish_many([b"%d" % (sent + one * 10 + each) for each in range(10)])
                        for one in range(20)
                    ]
                    await asyncio.gather(*many)
                    sent += 200
            return sent
        finally:
            await client.close()

    sent = asyncio.run(asyncio.wait_for(work(), 90))
    assert sorted(map(int, payloads(two))) == list(range(sent))


def test_a_reader_continues_at_its_offset(two: Brokers) -> None:
    found: list[bytes] = []
    with frazil.connect(two["a"].flight) as reading, frazil.connect(two["b"].flight) as writing:
        reader = reading.topic(TOPIC).read(follow=True)
        with Moving(two) as moving:
            topic = writing.topic(TOPIC)
            for number in itertools.count():
                topic.publish(b"%d" % number)
                found.append(next(reader).payload)
                if number >= ROWS and moving.moves >= MOVES:
                    break
        reader.close()
    assert found == [b"%d" % number for number in range(len(found))]


def test_a_subscription_continues_behind_what_was_acknowledged(two: Brokers) -> None:
    taken: list[int] = []
    with frazil.connect(two["b"].flight) as client:
        topic = client.topic(TOPIC)
        with topic.subscribe("s", consumer="c") as subscription:
            for number in range(100):
                topic.publish(b"%d" % number)
                if number % 25 == 24:
                    two.cluster.give(TOPIC, "b" if number % 50 == 24 else "a")
            for message in subscription:
                taken.append(message.offset)
                subscription.ack(message.offset)
                if message.offset == 50:
                    two.cluster.give(TOPIC, "b")
                if message.offset == 99:
                    break
    assert list(dict.fromkeys(taken)) == list(range(100))


def test_a_broker_that_ends_is_left_for_the_others(two: Brokers) -> None:
    with frazil.connect(two["a"].flight, producer="p") as client:
        topic = client.topic(TOPIC)
        assert topic.publish("before") == 0
        reader = topic.read(follow=True)
        assert next(reader).payload == b"before"
        two.kill("a")
        threading.Timer(0.7, two.cluster.give, (TOPIC, "b")).start()
        began = time.monotonic()
        assert topic.publish("after") == 1
        assert time.monotonic() - began < 10
        assert next(reader).payload == b"after"
        assert client.topics() == [TOPIC]
        reader.close()


def test_a_broker_that_joins_later_is_known_when_the_first_one_ends(two: Brokers) -> None:
    later = two.cluster.addresses.pop("b")
    with frazil.connect(two["a"].flight, producer="p") as client:
        topic = client.topic(TOPIC)
        assert topic.publish("alone") == 0
        two.cluster.addresses["b"] = later
        for sent in range(1, 100):
            assert topic.publish("not alone") == sent
            if later["advertised"] in client._connection._brokers._known:
                break
            pause(ASKED_US_MIN / 10_000_000)
        two.kill("a")
        two.cluster.give(TOPIC, "b")
        assert topic.publish("at the other") == sent + 1


def test_a_topic_without_a_broker_is_waited_for(two: Brokers) -> None:
    name = TopicName.parse(TOPIC)
    with frazil.connect(two["b"].flight) as client:
        topic = client.topic(TOPIC)
        topic.publish("first")
        two.cluster.unavailable[name] = "it moves"
        threading.Timer(0.7, two.cluster.unavailable.pop, (name,)).start()
        assert topic.publish("second") == 1


def test_a_topic_is_found_though_its_former_broker_hears_of_no_change(two: Brokers) -> None:
    """As one does that is cut off from the metadata store, and was fenced."""
    with frazil.connect([two["a"].flight, two["b"].flight], producer="p", give_up_ms=10_000) as client:
        topic = client.topic(TOPIC)
        assert topic.publish("first") == 0
        reader = topic.read(follow=True)
        assert next(reader).payload == b"first"
        two.cluster.cut_off["a"] = "it cannot be opened yet"
        two.cluster.give(TOPIC, "b")
        assert topic.publish("second") == 1
        assert next(reader).payload == b"second"
        reader.close()


def test_an_owner_without_an_address_is_asked_for_at_another_broker(two: Brokers) -> None:
    with frazil.connect([two["a"].flight, two["b"].flight], give_up_ms=10_000) as client:
        topic = client.topic(TOPIC)
        assert topic.publish("first") == 0
        two.cluster.addresses["b"] = {"http": "http://b.example"}
        two.cluster.give(TOPIC, "b")
        assert topic.publish("second") == 1


@pytest.mark.parametrize("opens", [True, False])
def test_the_reason_is_told_though_the_broker_that_was_asked_last_is_dead(two: Brokers, opens: bool) -> None:
    with frazil.connect([two["b"].flight, two["a"].flight], give_up_ms=1_500) as client:
        topic = None if opens else client.topic(TOPIC)
        two.kill("a")
        two.cluster.unavailable[TopicName.parse(TOPIC)] = "the broker a is gone; start it again"
        with pytest.raises(frazil.TopicUnavailable, match="the broker a is gone"):
            (topic or client.topic(TOPIC)).publish("never")


def test_the_wait_has_an_end_and_tells_the_reason(two: Brokers) -> None:
    two.cluster.unavailable[TopicName.parse(TOPIC)] = "the broker a is gone; start it again"
    with frazil.connect(two["b"].flight, give_up_ms=500) as client:
        with pytest.raises(frazil.TopicUnavailable, match="the broker a is gone; start it again"):
            client.topic(TOPIC)
        two.cluster.unavailable.clear()
        topic = client.topic(TOPIC)
        two.cluster.unavailable[TopicName.parse(TOPIC)] = "the broker a is gone; start it again"
        with pytest.raises(frazil.TopicUnavailable, match="the broker a is gone"):
            topic.publish("never")
        two.cluster.unavailable.clear()
        assert topic.publish("first") == 0


def test_partitions_at_several_brokers_are_deleted_together(two: Brokers) -> None:
    with frazil.connect(two["b"].flight) as client:
        client.create_partitions("/default/parts", 3)
        for number, name in enumerate(partition_names(TopicName.parse("/default/parts"), 3)):
            two.cluster.give(str(name), "ab"[number % 2])
        client.delete_topic("/default/parts")
    assert two.node.storage.topics() == [TOPIC]


@pytest.mark.parametrize("form", ["list", "commas", "one scheme"])
def test_the_first_broker_that_answers_is_enough(two: Brokers, form: str) -> None:
    dead = f"grpc://127.0.0.1:{free_port()}"
    alive = two["b"].flight
    address = {"list": [dead, alive], "commas": f"{dead},{alive}", "one scheme": f"{dead}, {alive[7:]}"}[form]
    with frazil.connect(address) as client:
        assert client.topic(TOPIC).publish("x") == 0


def test_a_client_without_any_broker_names_the_last(tmp_path: Path) -> None:
    addresses = [f"grpc://127.0.0.1:{free_port()}" for _ in range(2)]
    with pytest.raises(frazil.OwnerUnreachable, match=addresses[1]):
        frazil.connect(addresses)

"""A topic that goes from one broker of a cluster to another, and back: its users go with it, those of others stay."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from broker_world import TOPIC, run
from two_brokers import NAME, Side, hand_over, two_brokers

from frazil.broker.delivery.assignment import Kind
from frazil.broker.subscriptions.subscription import Subscription
from frazil.core.errors import (
    PartitioningDiffers,
    SubscriptionNotFound,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    TopicUnavailable,
    TryLater,
    UnknownClient,
)
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings
from frazil.meta.broker_keys import PROGRESS, SUBSCRIPTIONS, TOPICS, progress_key, topic_key
from frazil.meta.topic_records import TOPIC_RECORDS, topic_record_key
from frazil.node.topics.topics import Topics

OTHER, PARTS = TopicName.parse("/default/other"), TopicName.parse("/default/parts")
PART = [TopicName.parse(f"/default/parts-part-{number}") for number in range(3)]


def acks(side: Side, *offsets: int) -> None:
    found = side.broker.subscription(TOPIC, "s")
    for offset in offsets:
        found.ack(offset)


async def known_to(side: Side, name: TopicName) -> bool:
    return side.broker.knows(name)


@run
async def test_subscriptions_and_their_clients_go_on_at_the_other_broker_and_back(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        producer = await a.send("first")
        consumer = await a.subscribe()
        await a.send("one", "two", "three")
        assert await a.take(consumer, 3) == [(1, "one"), (2, "two"), (3, "three")]
        acks(a, 1, 3)
        await hand_over(a, b)

        assert b.broker.producer(producer).topic.name == NAME
        assert await b.take(consumer, 1) == [(2, "two")], "what was not acknowledged, and nothing else"
        acks(b, 2)
        assert await b.send("four") == producer, "the same name is the same producer"
        await hand_over(b, a)

        assert await a.take(consumer, 1) == [(4, "four")]
        assert a.broker.producer(producer).name == "p"


@run
async def test_a_topic_that_was_let_go_is_none_of_the_broker(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        producer = await a.send("first")
        consumer = await a.subscribe()
        stream = a.broker.connect(consumer)[3]
        await hand_over(a, b)
        assert await asyncio.wait_for(stream.take(), 10) is None, "its streams have ended"
        assert not a.broker.knows(NAME)
        for gone in (lambda: a.broker.producer(producer), lambda: a.broker.consumer(consumer)):
            with pytest.raises(UnknownClient):
                gone()
        with pytest.raises(TopicNotFound):
            await a.subscribe()


@run
async def test_policies_attempts_and_filters_go_along(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        await a.broker.subscribe(TOPIC, "s", Kind.KEY_SHARED, "c", ["x*"])
        await a.admin.set_policy(NAME, "s", lambda own: replace(own, redeliveries_max=7))
        await hand_over(a, b)
        assert b.admin.policy(NAME, "s").policy.redeliveries_max == 7
        (one,) = b.admin.consumers(NAME, "s")
        assert (one.consumer, one.key_filters) == ("c", ("x*",))
        assert b.admin.subscription(NAME, "s").type == "key-shared"


@run
async def test_a_broker_that_crashed_gives_what_it_had_stored(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        consumer = await a.subscribe()
        await a.send("one", "two")
        await a.take(consumer, 2)
        acks(a, 1)
        await a.broker._progress.flush()
        assert a.broker._progress._task is not None
        a.broker._progress._task.cancel()
        acks(a, 2)  # not stored any more: it is delivered again
        await hand_over(a, b, crashed=True)
        assert await b.take(consumer, 1) == [(2, "two")]


@run
async def test_a_broker_starts_with_no_topic_and_touches_no_record(tmp_path: Path) -> None:
    """A single server would drop records of topics that are not in its folder, put back its copy, and carry over."""
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        await a.subscribe()
        await b.send("other", topic=str(OTHER))
        before = a.records()
    async with two_brokers(tmp_path) as (a, b):
        assert (len(a.broker.topics), len(b.broker.topics)) == (0, 0)
        await a.broker.store_again()
        await b.broker.store_again()
        await b.broker.copy_all()
        assert a.records() == before


@run
async def test_storing_again_leaves_topics_of_others_alone(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        consumer = await a.subscribe()
        await b.send("other", topic=str(OTHER))
        await b.subscribe("mine", topic=str(OTHER))
        before = a.records()
        await a.broker.store_again()
        await b.broker.store_again()
        assert a.records().keys() == before.keys()
        assert a.record().encode() == before[f"{TOPIC_RECORDS}default/orders"]
        await hand_over(a, b)
        await b.broker.delete_subscription(b.broker.topics[NAME], "s")
        await a.broker.store_again()
        assert a.meta.get(topic_key(SUBSCRIPTIONS, NAME, "s")) is None
        assert a.meta.get(progress_key("s", NAME)) is None
        with pytest.raises(UnknownClient):
            a.broker.consumer(consumer)


@run
async def test_a_subscription_deleted_elsewhere_does_not_come_back_from_the_copy(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        await a.subscribe()
        copied = a.copy.get(topic_key(SUBSCRIPTIONS, NAME, "s"))
        assert copied is not None
        await hand_over(a, b, crashed=True)
        assert a.copy.get(topic_key(SUBSCRIPTIONS, NAME, "s")) == copied, "a crashed broker keeps its copy"
        await b.broker.delete_subscription(b.broker.topics[NAME], "s")
        a.broker._topics.remove(NAME)
        await hand_over(b, a)
        with pytest.raises(SubscriptionNotFound):
            a.admin.subscription(NAME, "s")
        assert a.meta.get(topic_key(SUBSCRIPTIONS, NAME, "s")) is None


@run
async def test_the_copy_puts_back_what_the_store_has_lost_of_a_topic_that_stayed(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        consumer = await a.subscribe()
        await b.send("other", topic=str(OTHER))
        await b.subscribe("mine", topic=str(OTHER))
        lost = [topic_key(SUBSCRIPTIONS, NAME, "s"), topic_key(SUBSCRIPTIONS, OTHER, "mine")]
        a.meta.delete_all(lost)
    async with two_brokers(tmp_path) as (a, _):
        a.storage.admission.admit(NAME)
        await a.broker.adopt(NAME, was_here=True)
        assert a.broker.consumer(consumer).subscription.name == "s"
        assert a.meta.get(lost[0]) is not None
        assert a.meta.get(lost[1]) is None, "that is for its owner"


@run
async def test_a_deleted_topic_takes_only_its_own_records_along(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        await a.subscribe()
        await b.send("other", topic=str(OTHER))
        await b.subscribe("s", topic=str(OTHER))
        others = {key: value for key, value in a.records().items() if "/other" in key}
        with pytest.raises(TopicInUse):
            await a.broker.delete_topic(NAME, force=False)
        await a.broker.delete_topic(NAME, force=True)
        assert a.records() == others
        await a.send("again")
        assert a.record().epoch_of(NAME) == 1
        with pytest.raises(SubscriptionNotFound):
            a.admin.subscription(NAME, "s")


@run
async def test_partitions_of_several_brokers_share_a_record(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.broker.create_topics(PARTS, 3, reliable=True, retention=None)
        assert {a.record(PARTS).owner_of(one) for one in PART} == {"a"}
        await hand_over(a, b, PART[1])
        assert b.broker.partitions(PARTS) == [str(PART[1])]
        for side in (a, b):
            with pytest.raises(TopicExists):
                await side.broker.create_topics(PARTS, 3, reliable=True, retention=None)
            with pytest.raises(PartitioningDiffers):
                await side.broker.create_topics(PARTS, 0, reliable=True, retention=None)
        a.storage.set_retention(str(PART[0]), RetentionSettings(age_ms=1_000))
        a.broker.identities.changed(PART[0])
        known = a.record(PARTS)
        assert (known.owner_of(PART[1]), known.epoch_of(PART[1])) == ("b", 2)
        assert (known.logs[PART[0]].retention or {})["age_ms"] == 1_000

        await a.broker.delete_topic(PART[0], force=True)
        await a.broker.delete_topic(PART[2], force=True)
        assert a.record(PARTS).logs.keys() == {PART[1]}
        await b.broker.delete_topic(PART[1], force=True)
        assert a.records() == {}


@run
async def test_a_name_belongs_to_whoever_made_it_first(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        with pytest.raises(TopicExists):
            await b.broker.create_topics(NAME, 0, reliable=True, retention=None)
        with pytest.raises(TopicExists):
            b.broker.identities.make(NAME, 0)
        assert a.record().owner_of(NAME) == "a"
        made = await asyncio.gather(
            *(one.broker.create_topics(OTHER, 0, reliable=True, retention=None) for one in (a, b)),
            return_exceptions=True,
        )
        assert sorted(type(one) for one in made if isinstance(one, Exception)) == [TopicExists]
        owner = a if a.broker.knows(OTHER) else b
        assert owner.record(OTHER).owner_of(OTHER) == owner.id


@run
async def test_a_creation_that_fails_leaves_other_partitions_in_the_record(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.broker.create_topics(PARTS, 3, reliable=True, retention=None)
        await a.broker.delete_topic(PART[0], force=True)
        await hand_over(a, b, PART[2])
        with pytest.raises(TryLater):
            await create_over_a_withheld_log(a, b)
        assert a.record(PARTS).logs.keys() == {PART[1], PART[2]}


async def create_over_a_withheld_log(a: Side, b: Side) -> None:
    """The folder of the log has a leftover of the name, which appears after the record was stored."""
    store = a.broker._records.put_topics

    async def stored(*given: object) -> None:
        await store(*given)  # type: ignore[arg-type]
        a.storage._catalog._withheld.add(PART[0])

    a.broker._records.put_topics = stored  # type: ignore[method-assign]
    producer = a.broker.create_producer(str(PART[0]), "p", reliable=True)
    await producer


@run
async def test_a_topic_without_a_log_goes_to_the_other_broker_too(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.broker.create_producer(TOPIC, "p", reliable=False)
        number = await a.subscribe(kind=Kind.SHARED)
        await hand_over(a, b)
        assert not isinstance(b.broker.subscription(TOPIC, "s"), Subscription)
        assert b.broker.consumer(number).consumer.name == "c"
        assert not a.broker.knows(NAME)


@run
async def test_release_fails_if_the_cursors_cannot_be_stored_and_the_topic_stays(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, _):
        await a.send("first")
        number = await a.subscribe()
        await a.send("one")
        await a.take(number, 1)
        acks(a, 1)
        put_all = a.meta.put_all

        def refused(_: object) -> None:
            raise TryLater("the store is away")

        a.meta.put_all = refused  # type: ignore[method-assign]
        with pytest.raises(TryLater):
            await a.broker.release(NAME)
        a.meta.put_all = put_all  # type: ignore[method-assign]
        assert a.broker.knows(NAME)
        await a.send("two")
        assert await a.take(number, 1) == [(2, "two")]


@run
async def test_a_topic_that_was_lost_to_another_broker_stores_no_cursor(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        number = await a.subscribe()
        await a.send("one", "two")
        await a.take(number, 2)
        await hand_over(a, b, crashed=True)
        await b.take(number, 2)
        found = b.broker.subscription(TOPIC, "s")
        found.ack(1)
        found.ack(2)
        await b.broker._progress.flush()
        stored = {key: value for key, value in b.records().items() if key.startswith((PROGRESS, TOPICS))}
        acks(a, 1)
        await a.broker._progress.flush()
        await a.broker.release(NAME, stores_cursors=False)
        await a.broker._progress.flush()
        assert {key: value for key, value in a.records().items() if key.startswith((PROGRESS, TOPICS))} == stored


@run
async def test_cursors_that_wait_for_an_earlier_call_are_not_stored_if_the_topic_goes_meanwhile(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        await a.subscribe()
        await a.broker._progress.flush()
        stored = {key: value for key, value in a.records().items() if key.startswith(PROGRESS)}
        goes_on = threading.Event()
        waiting = a.broker._records._thread.submit(goes_on.wait)
        subscription = a.broker.subscription(TOPIC, "s")
        assert isinstance(subscription, Subscription)
        a.broker._progress.moved(progress_key("s", NAME), subscription)
        flushing = asyncio.create_task(a.broker._progress.flush())
        await asyncio.sleep(0)  # it has looked at the cursor, and waits behind the other call
        found = a.record()
        assert b.meta.put_if(topic_record_key(NAME), found.owned_by(NAME, b.id, 2).encode(), revision(b))
        b.meta.put_all(dict.fromkeys(stored, b"the cursor of b"))
        goes_on.set()
        await flushing
        assert waiting.done()
        assert {a.records()[key] for key in stored} == {b"the cursor of b"}


@run
async def test_a_reset_that_waits_while_the_topic_goes_is_to_be_tried_again(tmp_path: Path) -> None:
    """The subscription goes on at the other broker: it is not gone."""
    async with two_brokers(tmp_path) as (a, _b):
        await a.send("first")
        await a.subscribe()
        subscription = a.broker.subscription(TOPIC, "s")
        assert isinstance(subscription, Subscription)
        topic = a.broker._topics[NAME]
        async with a.broker._progress.held():
            leaving = asyncio.create_task(a.broker.release(NAME, stores_cursors=False))
            await asyncio.sleep(0)
            reset = asyncio.create_task(a.broker.move_subscription(topic, subscription, 0))
            await asyncio.sleep(0)
        await leaving
        with pytest.raises(TryLater):
            await reset


@run
async def test_a_topic_that_another_broker_has_just_created_keeps_its_users(tmp_path: Path) -> None:
    """The watch of a broker is late: it learns of the other broker's topic from the record alone."""
    async with two_brokers(tmp_path) as (a, b):
        await b.send("first")
        await b.subscribe()
        before = a.records()
        a.cluster.family = lambda _: []  # type: ignore[method-assign]
        with pytest.raises(TopicExists):
            await a.broker.create_topics(NAME, 0, reliable=True, retention=None)
        with pytest.raises((TopicExists, TopicNotFound)):
            await a.subscribe()
        assert a.records() == before


@run
async def test_storing_again_leaves_a_topic_alone_that_another_broker_has_by_now(tmp_path: Path) -> None:
    """A restored store may name another owner, and this broker has not let go of the topic yet."""
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        await a.subscribe()
        found = a.record()
        assert b.meta.put_if(topic_record_key(NAME), found.owned_by(NAME, b.id, 2).encode(), revision(b))
        b.meta.put_all({progress_key("s", NAME): b"the cursor of b"})
        before = a.records()
        await a.broker.store_again()
        assert a.records() == before


@run
async def test_a_client_that_wants_a_topic_which_another_broker_creates_is_to_try_again(tmp_path: Path) -> None:
    """It finds the owner then. That the topic exists is no error for a client that asked for no new one."""
    async with two_brokers(tmp_path) as (a, b):
        await b.send("first")
        a.cluster.family = lambda _: []  # type: ignore[method-assign]
        with pytest.raises(TopicUnavailable, match="another broker has just created it"):
            await a.broker.create_producer(TOPIC, "p", reliable=True)
        topics = Topics(a.storage, lambda: a.broker)
        with pytest.raises(TopicUnavailable, match="another broker has just created it"):
            await topics.run(topics.open, TOPIC)
        assert not a.broker.knows(NAME)


@run
async def test_a_deletion_that_comes_after_a_move_changes_nothing(tmp_path: Path) -> None:
    async with two_brokers(tmp_path) as (a, b):
        await a.send("first")
        await a.subscribe()
        found = a.record()
        assert b.meta.put_if(topic_record_key(NAME), found.owned_by(NAME, b.id, 2).encode(), revision(b))
        before = a.records()
        with pytest.raises(TryLater, match="another broker"):
            await a.broker.delete_topic(NAME, force=True)
        assert a.records() == before
        assert str(NAME) in a.storage.topics()


def revision(side: Side) -> int:
    found = side.meta.get(topic_record_key(NAME))
    assert found is not None
    return found.revision

"""What a subscription does with messages: the window, answers, redelivery, poison, keys; over a real log in memory."""

from __future__ import annotations

import asyncio
from pathlib import Path
from unittest import mock

import pytest
from broker_world import QUICK, TOPIC, Client, World, run, world

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.broker.subscriptions.ack_guard import AckGuard
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.errors import (
    InvalidInput,
    PartitioningDiffers,
    SubscriptionTaken,
    TopicDiffers,
    TopicNotFound,
    UnknownClient,
)
from frazil.core.rows import Origin
from frazil.core.settings import make_settings
from frazil.core.settings.broker import Poison
from parts.moving import open_guarded


@run
async def test_a_new_subscription_begins_at_what_comes_next_and_an_old_one_goes_on(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("before")
        client = await here.consumer("c")
        await here.send("a", "b", "c")
        assert await client.take(3) == [(1, "a"), (2, "b"), (3, "c")]
        client.ack(1, 3)
    async with world(tmp_path) as here:
        client = Client(here, client.id)
        assert await client.take() == [(2, "b")], "what was acknowledged beyond the cursor does not come again"
        client.ack(2)
        await here.send("d")
        assert await client.take() == [(4, "d")]


@run
async def test_no_more_than_the_window_is_in_flight(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("x")
        client = await here.consumer("c")
        await here.send(*(str(number) for number in range(30)))
        assert [offset for offset, _ in await client.take(10)] == list(range(1, 11))
        assert await client.nothing_comes()
        client.ack(5)
        assert await client.take() == [(11, "10")]
        assert here.subscription.unacked == 10
        assert here.subscription.cursor.end == 1


@run
async def test_what_is_refused_comes_again_and_what_is_dropped_comes_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("x")
        client = await here.consumer("c")
        await here.send("a", "b")
        await client.take(2)
        here.subscription.nack(1, None, "not now")
        assert await client.take() == [(1, "a")]
        client.drop()
        client.connect()
        assert await client.take(2) == [(1, "a"), (2, "b")]
        client.ack(1, 1, 2)
        assert here.subscription.cursor.end == 3
        assert await client.nothing_comes()


@run
async def test_who_does_not_answer_in_time_gets_it_again(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK.model_copy(update={"ack_timeout_ms": 100})) as here:
        await here.send("x")
        client = await here.consumer("c")
        await here.send("a")
        assert await client.take(2) == [(1, "a"), (1, "a")]


@run
async def test_a_poison_message_blocks_until_it_is_acknowledged(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK.model_copy(update={"redeliveries_max": 1})) as here:
        await here.send("x")
        client = await here.consumer("c")
        await here.send("bad")
        for _ in range(2):
            assert await client.take() == [(1, "bad")]
            here.subscription.nack(1, None, "no")
        await here.send("good")
        assert here.subscription.blocked_by == 1
        assert await client.take() == [(1, "bad")], "it is tried again, and nothing overtakes it"
        client.ack(1)
        assert await client.take() == [(2, "good")]
        assert here.subscription.blocked_by is None


@pytest.mark.parametrize("poison", [Poison.DROP, Poison.DEAD_LETTER])
def test_a_poison_message_goes_elsewhere(poison: Poison, tmp_path: Path) -> None:
    async def test(folder: Path) -> None:
        async with world(folder, QUICK.model_copy(update={"redeliveries_max": 0, "poison": poison})) as here:
            await here.send("x")
            client = await here.consumer("c")
            await here.send("bad", "good")
            await client.take(2)
            here.subscription.nack(1, None, "no")
            client.ack(2)
            assert await client.nothing_comes()
            assert here.subscription.cursor.end == 3
            parts = here.broker.partitions(frazil.core.names.TopicName("default", "orders-dead-letter"))
            assert bool(parts) is (poison is Poison.DEAD_LETTER)

    run(test)(tmp_path)
    if poison is Poison.DEAD_LETTER:
        with frazil.open(tmp_path / "data") as storage:
            (letter,) = storage.topic("/default/orders-dead-letter", create=False).read()
        assert letter.payload == b"bad"
        assert letter.attributes["x-original-topic"] == TOPIC
        assert letter.attributes["x-original-topic-offset"] == "1"
        assert letter.attributes["x-failure-reason"] == "no"


@run
async def test_shared_in_turn_and_a_lost_consumers_part_goes_to_the_others(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("x")
        one, two = await here.consumer("one", Kind.SHARED), await here.consumer("two", Kind.SHARED)
        await here.send("a", "b", "c", "d")
        first, second = await one.take(2), await two.take(2)
        assert sorted(first + second) == [(1, "a"), (2, "b"), (3, "c"), (4, "d")]
        one.drop()
        assert await two.take(2) == first


@run
async def test_one_message_of_a_key_at_a_time_and_others_pass(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("x")
        client = await here.consumer("c", Kind.KEY_SHARED)
        await here.send("a1", "a2", "a3", key="a")
        await here.send("b1", key="b")
        assert await client.take(2) == [(1, "a1"), (4, "b1")]
        assert await client.nothing_comes()
        client.ack(1)
        assert await client.take() == [(2, "a2")]
        here.subscription.nack(2, None, "no")
        assert await client.take() == [(2, "a2")], "the next of the key waits for it"
        client.ack(2, 4)
        assert await client.take() == [(3, "a3")]
        client.ack(3)
        assert here.subscription.cursor.end == 5


@run
async def test_what_nobody_wants_is_passed_over(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("x")
        client = await here.consumer("c", Kind.KEY_SHARED, ("eu-*",))
        await here.send("far", key="us-1")
        await here.send("near", key="eu-1")
        assert await client.take() == [(2, "near")]
        client.ack(2)
        assert here.subscription.cursor.end == 3


@run
async def test_a_standby_takes_over_with_all_that_was_not_acknowledged(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("x")
        one, two = await here.consumer("one", Kind.FAILOVER), await here.consumer("two", Kind.FAILOVER)
        await here.send("a", "b")
        assert await one.take(2) == [(1, "a"), (2, "b")]
        assert await two.nothing_comes()
        one.ack(1)
        one.drop()
        assert await two.take() == [(2, "b")]


@run
async def test_the_same_name_takes_over_and_another_is_refused(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("x")
        one = await here.consumer("c")
        await here.send("a")
        await one.take()
        again = await here.consumer("c")
        assert again.id == one.id
        assert one.stream is not None
        assert await one.stream.take() is None, "the old stream has ended"
        assert await again.take() == [(1, "a")]
        again.drop()
        with pytest.raises(SubscriptionTaken, match="c has it"):
            await here.consumer("other")


@run
async def test_bad_calls_are_refused_by_name(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.send("x")
        with pytest.raises(TopicDiffers, match="its dispatch is reliable"):
            await here.broker.create_producer(TOPIC, "q", reliable=False)
        with pytest.raises(PartitioningDiffers, match="without partitions"):
            await here.broker.create_producer(f"{TOPIC}-part-0", "q", reliable=True)
        with pytest.raises(InvalidInput, match="producer_name"):
            await here.broker.create_producer(TOPIC, "", reliable=True)
        with pytest.raises(TopicNotFound):
            await here.broker.subscribe("/default/nothing", "s", Kind.SHARED, "c")
        with pytest.raises(UnknownClient):
            here.broker.producer(7)
        with pytest.raises(UnknownClient):
            here.broker.connect(7)
        with pytest.raises(InvalidInput, match="no subscription"):
            here.broker.subscription(TOPIC, "nobody")
        assert here.broker.partitions(frazil.core.names.TopicName("default", "orders")) == [TOPIC]


@run
async def test_ids_outlive_a_restart(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        producer = await here.broker.create_producer(TOPIC, "p", reliable=True)
        assert (await here.broker.create_producer(TOPIC, "p", reliable=True)).id == producer.id
    async with world(tmp_path) as here:
        assert here.broker.producer(producer.id).name == "p"


@run
async def test_a_topic_without_a_log_reaches_those_who_listen(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        producer = await here.broker.create_producer("/default/live", "p", reliable=False)
        number = await here.broker.subscribe("/default/live", "s", Kind.SHARED, "c")
        client = Client(here, number)
        for number in range(150):
            await producer.topic.publish(OutgoingMessage(str(number).encode(), None, {}, Origin("p", 1)))
        assert await client.take(100) == [(number, str(number)) for number in range(100)]
        assert await client.nothing_comes(), "what did not fit was dropped"
        client.ack(3)


@run
async def test_what_everyone_has_acknowledged_may_go_and_nothing_else(tmp_path: Path) -> None:
    small = make_settings({"data": tmp_path / "data", "wal": {"max_file_size": 64 * 1024}})
    with open_guarded(small) as storage:
        storage.create_topic(TOPIC, retention=frazil.RetentionSettings(until_acked=True))
        here = World(storage, tmp_path, QUICK.model_copy(update={"max_unacked_messages": 1_000}))
        await here.broker.start()
        guard = AckGuard(here.broker)
        storage.add_guard(guard)
        await here.broker.create_producer(TOPIC, "p", reliable=True)
        client = await here.consumer("c")
        number = await here.broker.subscribe(TOPIC, "slow", Kind.EXCLUSIVE, "c")
        await here.send(*["x" * 1_000] * 300)
        await client.take(300)
        client.ack(*range(300))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(storage.maintain)
        log = storage.topic(TOPIC).log
        assert log.first_offset == 0, "the other has none of it"
        slow = Client(here, number)
        await slow.take(300)
        slow.ack(*range(150))
        await here.broker.close()
        await asyncio.to_thread(storage.maintain)
        assert 0 < log.first_offset <= 150
        storage.remove_guard(guard)
        before = log.first_offset
        await asyncio.to_thread(storage.maintain)
        assert log.first_offset == before, "without a broker's word nothing goes"
        here.meta.close()


@run
async def test_a_subscription_that_is_set_back_and_closed_at_once_ends(tmp_path: Path) -> None:
    """It waits after a failed read. A topic that moves waits for its end."""
    async with world(tmp_path) as here:
        await here.send("x")
        client = await here.consumer("c")
        failing = frazil.FrazilError("the disk is slow")
        with mock.patch.object(Subscription, "_read", side_effect=failing):
            await here.send("a")
            here.subscription._wake.set()
            while here.subscription._reset._waiter is None:  # noqa: ASYNC110 - the task waits soon
                await asyncio.sleep(0.001)
            here.subscription._reset.set()
            async with asyncio.timeout(5):
                await here.subscription.close()
        assert client.id

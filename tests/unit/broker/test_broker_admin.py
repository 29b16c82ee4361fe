"""What administrators do to the broker: subscriptions set elsewhere and deleted, topics made and deleted."""

from __future__ import annotations

import asyncio
from datetime import datetime, timezone
from pathlib import Path
from unittest import mock

import pytest
from broker_world import QUICK, TOPIC, Client, World, run, until, world

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.progress import Progress
from frazil.broker.store.records import PROGRESS, SUBSCRIPTIONS
from frazil.broker.topics.dead_letters import dead_letter_topic
from frazil.broker.topics.replay import read_dead_letters, replay_all, replay_one
from frazil.broker.topics.topic import BrokerTopic, OutgoingMessage
from frazil.core.clock import SystemClock
from frazil.core.errors import (
    Closed,
    DiskFull,
    InvalidInput,
    OffsetOutOfRange,
    SubscriptionNotFound,
    TopicDiffers,
    TopicExists,
    TopicInUse,
    TopicNotFound,
    UnknownClient,
)
from frazil.core.names import TopicName
from frazil.core.rows import Origin
from frazil.core.settings import RetentionSettings, make_settings
from frazil.core.settings.broker import Poison
from parts.moving import Floor, HandMover

NAME = TopicName.parse(TOPIC)


async def ten(here: World) -> Client:
    """Ten messages, "0" up to "9", of which a consumer has acknowledged five and has the others in flight."""
    client = await here.consumer("c")
    await here.send(*map(str, range(10)))
    await client.take(10)
    client.ack(0, 1, 2, 3, 4)
    return client


@run
async def test_a_subscription_that_is_set_back_goes_on_there_with_the_consumer_it_has(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await ten(here)
        status = await here.admin.reset(NAME, "s", 2)
        assert (status.cursor, status.durable, status.lag, status.connected) == (2, 2, 8, 1)
        assert [offset for offset, _ in await client.take(8)] == list(range(2, 10))


@run
async def test_answers_to_what_was_delivered_before_count_for_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await ten(here)
        before = here.subscription.incarnation
        await here.admin.reset(NAME, "s", 2)
        await client.take(8)
        client.ack(2, 3, 9, incarnation=before)
        here.subscription.nack(5, 0, "late", before)
        assert (here.subscription.cursor.end, here.subscription.in_flight) == (2, 8)
        client.ack(2, 3, 9, incarnation=here.subscription.incarnation)
        assert (here.subscription.cursor.end, here.subscription.lag) == (4, 5)


@run
async def test_a_client_that_does_not_tell_which_delivery_it_answers_is_believed_of_what_it_has(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK.model_copy(update={"max_unacked_messages": 2})) as here:
        client = await here.consumer("c")
        await here.send("a", "b", "c", "d")
        await client.take(2)
        await here.admin.reset(NAME, "s", 0)
        await client.take(2)
        with pytest.raises(frazil.InvalidInput, match="send the id back as it came"):
            client.ack(3)
        assert here.subscription.lag == 4, "that one was not delivered since"
        client.ack(0)
        assert here.subscription.cursor.end == 1


@run
async def test_where_a_subscription_was_set_outlives_a_crash_and_so_do_void_deliveries(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK.model_copy(update={"progress_flush_ms": 60_000})) as here:
        await ten(here)
        before = here.subscription.incarnation
        await here.admin.reset(NAME, "s", 1)
        after = here.subscription.incarnation
        stored = here.meta.get(f"{PROGRESS}s/default/orders")
        assert stored is not None
        assert b'"offset": 1' in stored.value
    async with world(tmp_path) as here:
        here.subscription.ack(9, before)
        assert here.subscription.lag == 9
        here.subscription.ack(9, after)
        assert here.subscription.lag == 8


@run
async def test_to_latest_earliest_and_a_time(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await here.consumer("c")
        await here.send("a", "b")
        between = datetime.fromtimestamp((SystemClock().now_us() + 1) / 1e6, timezone.utc)
        await here.send("c", "d")
        await client.take(4)
        assert (await here.admin.reset(NAME, "s", between)).cursor == 2
        assert await client.take(2) == [(2, "c"), (3, "d")]
        assert (await here.admin.reset(NAME, "s", "latest")).lag == 0
        assert await client.nothing_comes()
        await here.admin.reset(NAME, "s", "earliest")
        assert (await client.take())[0] == (0, "a")
        with pytest.raises(OffsetOutOfRange):
            await here.admin.reset(NAME, "s", 5)
        with pytest.raises(SubscriptionNotFound):
            await here.admin.reset(NAME, "other", 0)


@run
async def test_set_forward_it_keeps_what_a_crash_would_ask_for_until_that_is_stored(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK.model_copy(update={"progress_flush_ms": 600_000})) as here:
        await ten(here)
        here.subscription.stored(Progress(here.subscription.incarnation, 3))
        before, full = here.subscription.incarnation, DiskFull("meta.db", "no room")
        with mock.patch.object(here.meta, "put_all", side_effect=full), pytest.raises(DiskFull):
            await here.admin.reset(NAME, "s", "latest")
        assert here.broker.acked(NAME) == 3
        assert here.subscription.incarnation == before, "a reset that is refused changes nothing"
        await here.admin.reset(NAME, "s", "latest")
        assert here.broker.acked(NAME) == 10


@run
async def test_messages_that_are_taken_together_are_of_the_incarnation_they_were_taken_for(tmp_path: Path) -> None:
    """A reset that comes before they are sent must not make them deliveries of the new one."""
    async with world(tmp_path) as here:
        client = await here.consumer("c")
        await here.send("a", "b")
        stream = client.stream
        assert stream is not None
        await until(lambda: len(stream) == 2)
        before = stream.incarnation
        taking = asyncio.ensure_future(stream.take_some(10))
        await until(taking.done)
        await here.admin.reset(NAME, "s", 1)
        incarnation, entries = await taking
        assert (incarnation, [entry.offset for entry in entries]) == (before, [0, 1])
        assert here.subscription.incarnation != before


@run
async def test_a_key_that_was_busy_is_free_after_a_reset(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await here.consumer("c", Kind.KEY_SHARED)
        await here.send("a", "b", "c", key="k")
        assert await client.take() == [(0, "a")]
        await here.admin.reset(NAME, "s", 1)
        assert await client.take() == [(1, "b")]
        client.ack(1, incarnation=here.subscription.incarnation)
        assert await client.take() == [(2, "c")]


@run
async def test_a_blocked_subscription_goes_on_beyond_its_poison_message(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK.model_copy(update={"redeliveries_max": 0})) as here:
        client = await here.consumer("c")
        await here.send("poison", "good")
        await client.take(2)
        here.subscription.nack(0, 0, "no")
        assert here.admin.subscription(NAME, "s").blocked_by == 0
        assert (await here.admin.reset(NAME, "s", 1)).blocked_by is None
        assert await client.take() == [(1, "good")]


@run
async def test_what_only_the_table_has_can_be_gone_back_to(tmp_path: Path) -> None:
    where = make_settings({"data": tmp_path / "data", "wal": {"max_file_size": 64 * 1024, "cache_capacity": 0}})
    floor = Floor()
    async with world(tmp_path, where=where, guards=[floor]) as here:
        client = await here.consumer("c")
        topic = here.storage.topic(TOPIC)
        for start in range(0, 3_000, 100):
            await asyncio.to_thread(topic.publish_many, [f"{start + at}".encode() * 20 for at in range(100)])
        floor.ends[topic.log.log_id] = await asyncio.to_thread(HandMover(where).move, topic)
        here.storage.set_retention(TOPIC, RetentionSettings(bytes=1))
        await here.admin.reset(NAME, "s", "latest")
        await asyncio.to_thread(here.storage.maintain)
        assert topic.log.first_offset > 100
        assert (await here.admin.reset(NAME, "s", 7)).cursor == 7
        assert (await client.take(2))[1] == (8, "8" * 20)
        assert (await here.admin.reset(NAME, "s", "earliest")).cursor == 0
        assert (await client.take())[0] == (0, "0" * 20)


@run
async def test_however_often_it_is_set_elsewhere_while_it_reads_nothing_is_passed_over(tmp_path: Path) -> None:
    """Without a cache every read is in a thread, so that most resets come in the midst of one."""
    where = make_settings({"data": tmp_path / "data", "wal": {"cache_capacity": 0}})
    count = 400
    async with world(tmp_path, where=where) as here:
        client = await here.consumer("c")
        await here.send(*map(str, range(count)))
        for turn in range(60):
            await here.admin.reset(NAME, "s", (turn * 37) % count)
            for _ in range(turn % 7):
                await asyncio.sleep(0)
        await here.admin.reset(NAME, "s", 100)
        incarnation = here.subscription.incarnation
        for offset in range(100, count):
            assert await client.take() == [(offset, str(offset))]
            client.ack(offset, incarnation=incarnation)
        assert here.subscription.lag == 0


@run
async def test_a_deleted_subscription_ends_its_streams_and_leaves_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await ten(here)
        assert client.stream is not None
        await here.admin.delete_subscription(NAME, "s")
        assert await asyncio.wait_for(client.stream.take(), 10) is None
        assert not here.broker.has_consumer(client.id)
        with pytest.raises(UnknownClient):
            here.broker.connect(client.id)
        with pytest.raises(SubscriptionNotFound):
            await here.admin.delete_subscription(NAME, "s")
        assert not here.meta.list(PROGRESS)
        assert not here.meta.list("/broker/consumers/")
        again = await here.consumer("c")
        assert await again.nothing_comes(), "it begins with what is published next"
    async with world(tmp_path) as here:
        assert [one.consumer for one in here.admin.consumers(NAME, "s")] == ["c"]


@run
async def test_a_topic_that_is_used_goes_only_by_force_and_nothing_of_it_is_left(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await ten(here)
        producer = await here.broker.create_producer(TOPIC, "p", reliable=True)
        log_id = here.storage.record(TOPIC).log_id
        with pytest.raises(TopicInUse) as refused:
            await here.broker.delete_topic(NAME, force=False)
        assert (refused.value.subscriptions, refused.value.producers) == (1, 1)
        await here.broker.delete_topic(NAME, force=True)
        assert here.storage.topics() == []
        assert not here.broker.has_producer(producer.id)
        assert not here.broker.has_consumer(client.id)
        assert not here.meta.list("/broker/")
        assert not here.meta.list(PROGRESS)
        with pytest.raises(TopicNotFound):
            here.admin.subscriptions(NAME)
        await here.send("new")
        assert here.storage.record(TOPIC).log_id != log_id
        await here.consumer("c")
        assert here.subscription.cursor.end == 1


@run
async def test_what_another_deleted_half_is_deleted_by_the_next_call(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await ten(here)
    with frazil.open(tmp_path / "data") as storage:
        storage.delete_topic(TOPIC)  # by someone who knows nothing of subscriptions
    async with world(tmp_path) as here:
        assert here.meta.list(SUBSCRIPTIONS)
        with pytest.raises(TopicInUse):
            await here.broker.delete_topic(NAME, force=False)
        with pytest.raises(TopicNotFound):
            await here.broker.delete_topic(NAME, force=True)
        assert not here.meta.list("/broker/")
        assert not here.meta.list(PROGRESS)


@run
async def test_a_topic_made_again_while_no_broker_ran_inherits_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await ten(here)
    with frazil.open(tmp_path / "data") as storage:
        storage.delete_topic(TOPIC)  # by someone who knows nothing of subscriptions
        storage.topic(TOPIC).publish("new")
    async with world(tmp_path) as here:
        assert here.admin.subscriptions(NAME) == []
        assert here.admin.producers(NAME) == []
        assert not here.meta.list(PROGRESS)
        assert not here.meta.list("/broker/consumers/")


@run
async def test_a_topic_that_a_broker_makes_again_inherits_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await ten(here)
    with frazil.open(tmp_path / "data") as storage:
        storage.delete_topic(TOPIC)
    async with world(tmp_path) as here:
        assert here.meta.list(SUBSCRIPTIONS), "a log that is not there may be on a disk that is not mounted"
        await here.send("new")
        assert here.admin.subscriptions(NAME) == []
        assert not here.meta.list(SUBSCRIPTIONS)
        assert not here.meta.list(PROGRESS)


@run
async def test_partitions_are_made_all_or_none_and_known_to_clients(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        names = [TopicName.parse(f"{TOPIC}-part-{number}") for number in range(3)]
        here.storage.create_topic(str(names[2])).publish("tea")
        with pytest.raises(TopicExists):
            await here.broker.create_topics(NAME, 3, reliable=True, retention=None)
        assert here.storage.topics() == [str(names[2])]
        here.storage.delete_topic(str(names[2]))
        await here.broker.create_topics(NAME, 3, reliable=True, retention=RetentionSettings(age_ms=7))
        assert here.broker.partitions(NAME) == [str(name) for name in names]
        assert here.storage.record(str(names[1])).retention == RetentionSettings(age_ms=7)
        await here.broker.subscribe(str(names[0]), "s", Kind.SHARED, "c")
        with pytest.raises(TopicExists):
            await here.broker.create_topics(NAME, 0, reliable=True, retention=None)


@run
async def test_partitions_of_one_kind_are_not_completed_by_those_of_the_other(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        part = TopicName.parse(f"{TOPIC}-part-1")
        await here.broker.create_topics(part, 0, reliable=False, retention=None)
        with pytest.raises(TopicExists):
            await here.broker.create_topics(NAME, 2, reliable=True, retention=None)
        assert (here.storage.topics(), here.broker.partitions(NAME)) == ([], [str(part)])
        await here.broker.create_topics(NAME, 2, reliable=False, retention=None)
        assert len(here.broker.partitions(NAME)) == 2
        await here.broker.delete_topic(NAME, force=False)
        assert here.broker.partitions(NAME) == []


@run
async def test_partitions_that_cannot_be_recorded_are_not_made(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.meta.close()
        with pytest.raises(Closed):
            await here.broker.create_topics(NAME, 3, reliable=True, retention=None)
        assert (here.storage.topics(), here.broker.partitions(NAME)) == ([], [])


@run
async def test_partitions_made_on_the_folder_or_by_another_door_are_found_by_clients(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        assert await here.broker.discover(NAME) == []
        made = [topic.name for topic in here.storage.create_partitions(TOPIC, 2)]
        assert await here.broker.discover(NAME) == made
        await here.broker.subscribe(made[1], "s", Kind.SHARED, "c")
        here.storage.create_topic("/default/plain")
        assert await here.broker.discover(TopicName.parse("/default/plain")) == ["/default/plain"]
        assert await here.broker.discover(TopicName.parse("/default/plai")) == []
    async with world(tmp_path) as here:
        assert here.broker.partitions(NAME) == made


@run
async def test_a_partitioned_topic_is_deleted_whole_or_if_in_use_not_at_all(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        names = await here.broker.create_topics(NAME, 3, reliable=True, retention=None)
        await here.broker.subscribe(str(names[0]), "s", Kind.SHARED, "c")
        with pytest.raises(TopicInUse):
            await here.broker.delete_topic(NAME, force=False)
        assert len(here.storage.topics()) == len(here.broker.partitions(NAME)) == 3
        await here.broker.delete_topic(NAME, force=True)
        assert (here.storage.topics(), here.broker.partitions(NAME)) == ([], [])
        assert here.meta.list(SUBSCRIPTIONS) == []
        with pytest.raises(TopicNotFound):
            await here.broker.delete_topic(NAME, force=True)


@run
async def test_a_topic_that_is_deleted_while_clients_ask_for_it_does_not_come_back(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.storage.create_partitions(TOPIC, 2)
        asked = [here.broker.discover(NAME) for _ in range(5)]
        await asyncio.gather(here.broker.delete_topic(NAME, force=True), *asked)
        assert (here.storage.topics(), await here.broker.discover(NAME)) == ([], [])


@run
async def test_a_topic_that_keeps_nothing_has_subscriptions_without_a_place(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.broker.create_topics(NAME, 0, reliable=False, retention=None)
        await here.consumer("c")
        status = here.admin.subscription(NAME, "s")
        assert (status.reliable, status.cursor, status.lag, status.connected) == (False, None, None, 1)
        with pytest.raises(TopicDiffers):
            await here.admin.reset(NAME, "s", "latest")
        await here.broker.delete_topic(NAME, force=True)
        assert not here.broker.knows(NAME)


DEADLY = QUICK.model_copy(update={"redeliveries_max": 0, "poison": Poison.DEAD_LETTER})


async def letters(here: World, *payloads: str) -> Client:
    """Messages that became dead letters."""
    client = await here.consumer("c")
    producer = await here.broker.create_producer(TOPIC, "p", reliable=True)
    for payload in payloads:
        await producer.topic.publish(OutgoingMessage(payload.encode(), "k", {"own": "1"}, Origin("p", 1_000_000, 3, 4)))
    for offset, _ in await client.take(len(payloads)):
        here.subscription.nack(offset, 0, "no good")
    await until(lambda: not here.subscription.lag)
    return client


@run
async def test_dead_letters_are_read_in_pages_and_replayed_as_they_were(tmp_path: Path) -> None:
    async with world(tmp_path, DEADLY) as here:
        client = await letters(here, *"abcde")
        first = read_dead_letters(here.storage, NAME, None, 2)
        assert ([letter.payload for letter in first.letters], first.next) == ([b"a", b"b"], 1)
        rest = read_dead_letters(here.storage, NAME, 1, 10)
        assert ([letter.payload for letter in rest.letters], rest.next) == ([b"c", b"d", b"e"], None)
        assert read_dead_letters(here.storage, NAME, 4, 10).letters == []
        await replay_one(here.broker, BrokerTopic.publish, here.storage, NAME, 3)
        assert await client.take() == [(5, "d")]
        done = await replay_all(here.broker, BrokerTopic.publish, here.storage, NAME, None, 2)
        assert (done.count, done.next) == (2, 1)
        done = await replay_all(here.broker, BrokerTopic.publish, here.storage, NAME, done.next, 100)
        assert (done.count, done.next, done.error) == (3, None, None)
        assert [text for _, text in await client.take(5)] == list("abcde")
        (message,) = here.storage.topic(TOPIC).read(5, end=6)
        assert dict(message.attributes) == {"own": "1", "x-replayed-dead-letter": "3"}
        assert (message.key, message.producer, message.schema_id, message.schema_version) == (b"k", "p", 3, 4)
        assert message.publish_time.timestamp() == 1


@run
async def test_a_replay_never_makes_a_topic_and_says_where_it_stopped(tmp_path: Path) -> None:
    async with world(tmp_path, DEADLY) as here:
        await letters(here, "a")
        dead = await here.broker.create_producer(str(dead_letter_topic(NAME)), "stranger", reliable=True)
        await dead.topic.publish(OutgoingMessage(b"x", None, {}, Origin("stranger", 1)))
        with pytest.raises(InvalidInput, match="no dead letter"):
            await replay_one(here.broker, BrokerTopic.publish, here.storage, NAME, 1)
        done = await replay_all(here.broker, BrokerTopic.publish, here.storage, NAME, None, 100)
        assert (done.count, done.next) == (1, 0)
        assert isinstance(done.error, InvalidInput)
        with pytest.raises(OffsetOutOfRange):
            await replay_one(here.broker, BrokerTopic.publish, here.storage, NAME, 2)
        await here.broker.delete_topic(NAME, force=True)
        with pytest.raises(TopicNotFound, match="create it first"):
            await replay_one(here.broker, BrokerTopic.publish, here.storage, NAME, 0)
        assert TOPIC not in here.storage.topics()
        with pytest.raises(TopicNotFound):
            read_dead_letters(here.storage, TopicName.parse("/default/never"), None, 1)


@run
async def test_partitions_share_their_dead_letters_and_each_sees_its_own(tmp_path: Path) -> None:
    async with world(tmp_path, DEADLY) as here:
        dead = dead_letter_topic(NAME)
        parts = [TopicName.parse(f"{TOPIC}-part-{number}") for number in range(2)]
        await here.broker.create_topics(NAME, 2, reliable=True, retention=None)
        for name in parts:
            number = await here.broker.subscribe(str(name), "s", Kind.EXCLUSIVE, "c")
            client = Client(here, number)
            await here.send(f"of {name}", topic=str(name))
            ((offset, _),) = await client.take()
            here.broker.subscription(str(name), "s").nack(offset, 0, "no")
        await until(lambda: here.broker.knows(dead) and here.storage.topic(str(dead)).stats().end == 2)
        (mine,) = read_dead_letters(here.storage, parts[1], None, 9).letters
        assert mine.payload == f"of {parts[1]}".encode()
        assert (await replay_all(here.broker, BrokerTopic.publish, here.storage, parts[1], None, 9)).count == 1
        assert here.storage.topic(str(parts[0])).stats().end == 1
        assert here.storage.topic(str(parts[1])).stats().end == 2

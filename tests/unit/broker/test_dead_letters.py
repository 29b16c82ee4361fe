"""Any poison message can become a dead letter."""

from __future__ import annotations

from pathlib import Path

from broker_world import QUICK, TOPIC, Client, run, until, world

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.broker.topics.dead_letters import dead_letter_topic
from frazil.core.names import PART_LENGTH_MAX, TopicName
from frazil.core.settings import make_settings
from frazil.core.settings.broker import Poison

LETTERS = QUICK.model_copy(update={"redeliveries_max": 0, "poison": Poison.DEAD_LETTER})


def test_long_names_that_begin_alike_have_letters_of_their_own() -> None:
    one, two = (dead_letter_topic(TopicName("default", "o" * 127 + end)) for end in "ab")
    assert one != two
    assert len(one.topic) <= PART_LENGTH_MAX
    assert TopicName.parse(str(one)) == one


@run
async def test_a_message_as_large_as_may_be_becomes_a_dead_letter(tmp_path: Path) -> None:
    where = make_settings({"data": tmp_path / "data", "wal": {"message_bytes_max": 1_000}})
    async with world(tmp_path, LETTERS, where) as here:
        client = await here.consumer("c")
        await here.send("x" * 1_000, "behind")
        await client.take(2)
        here.subscription.nack(0, 0, "no" * 5_000)
        await until(lambda: here.subscription.cursor.end == 1)
        (letter,) = here.storage.topic("/default/orders-dead-letter", create=False).read()
        assert len(letter.payload) == 1_000


@run
async def test_a_topic_with_the_longest_name_has_dead_letters(tmp_path: Path) -> None:
    topic = "/default/" + "o" * PART_LENGTH_MAX
    async with world(tmp_path, LETTERS) as here:
        await here.broker.create_producer(topic, "p", reliable=True)
        client = Client(here, await here.broker.subscribe(topic, "s", Kind.EXCLUSIVE, "c"))
        await here.send("bad", topic=topic)
        await client.take()
        found = here.broker.subscription(topic, "s")
        found.nack(0, 0, "no")
        letters = str(dead_letter_topic(TopicName.parse(topic)))
        await until(lambda: letters in here.storage.topics() and here.storage.topic(letters).log.visible_end == 1)
        assert isinstance(here.storage, frazil.Storage)


@run
async def test_a_dead_letter_says_all_that_is_known_of_its_message(tmp_path: Path) -> None:
    async with world(tmp_path, LETTERS) as here:
        here.broker.address = "http://broker.example:6650"
        client = await here.consumer("c")
        await here.send("bad")
        here.storage.topic(TOPIC).publish(b"by another way")
        await client.take(2)
        for offset in (0, 1):
            here.subscription.nack(offset, 0, "cold tea")
            await until(lambda: here.subscription.cursor.end == offset + 1)  # noqa: B023 - it is awaited here
        letter, other = here.storage.topic("/default/orders-dead-letter", create=False).read()
        producer = await here.broker.create_producer(TOPIC, "p", reliable=True)
        assert dict(letter.attributes) == {
            "x-original-topic": TOPIC,
            "x-original-subscription": "s",
            "x-original-topic-offset": "0",
            "x-original-producer-id": str(producer.id),
            "x-original-broker-addr": "http://broker.example:6650",
            "x-poison-policy": "dead_letter",
            "x-delivery-attempt": "1",
            "x-failure-reason": "cold tea",
        }
        assert other.attributes["x-original-producer-id"] == "0"

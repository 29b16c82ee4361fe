"""The dead-letter topic of a policy while security is on: created with the policy or not at all, and never by the
broker."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest
from broker_world import QUICK, TOPIC, Client, World, run, until, world

from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import OwnPolicy
from frazil.broker.store.records import SUBSCRIPTIONS
from frazil.broker.topics.dead_letters import dead_letter_topic
from frazil.core.errors import DiskFull, TopicDiffers, TopicExists
from frazil.core.names import TopicName
from frazil.core.settings.broker import Poison

NAME, LETTERS = TopicName.parse(TOPIC), TopicName.parse("/lost/found")
AT_ONCE = QUICK.model_copy(update={"redeliveries_max": 0})


def to(letters: TopicName) -> OwnPolicy:
    return OwnPolicy(poison=Poison.DEAD_LETTER, dead_letter_topic=str(letters))


async def set_policy(here: World, own: OwnPolicy, letters: TopicName | None) -> None:
    await here.broker.policies.set(here.broker.topics[NAME], "s", lambda _: own, letters)


async def refuse(here: World, client: Client, offset: int) -> None:
    await client.take()
    here.subscription.nack(offset, 0, "no")


@run
async def test_the_topic_is_created_with_the_policy_and_takes_its_letters(tmp_path: Path) -> None:
    async with world(tmp_path, AT_ONCE, letters_on_demand=False) as here:
        client = await here.consumer("c")
        await set_policy(here, to(LETTERS), LETTERS)
        assert str(LETTERS) in here.storage.topics()
        await here.send("bad")
        await refuse(here, client, 0)
        await until(lambda: here.subscription.cursor.end == 1)
        assert [one.payload for one in here.storage.topic(str(LETTERS), create=False).read()] == [b"bad"]
    async with world(tmp_path, AT_ONCE, letters_on_demand=False) as here:
        assert here.subscription.own_policy == to(LETTERS)


@run
async def test_a_deleted_topic_is_not_created_again_and_no_message_is_lost(tmp_path: Path) -> None:
    async with world(tmp_path, AT_ONCE, letters_on_demand=False) as here:
        client = await here.consumer("c")
        await set_policy(here, to(LETTERS), LETTERS)
        await here.broker.delete_topic(LETTERS, force=False)
        await here.send("bad", "good")
        await refuse(here, client, 0)
        assert await client.take() == [(1, "good")], "the others go on"
        client.ack(1)
        await until(lambda: here.subscription.counts.letters_failed >= 2)
        assert here.storage.topics() == [TOPIC]
        assert here.subscription.cursor.end == 0, "it is kept"
        await here.broker.create_topics(LETTERS, 0, reliable=True, retention=None)
        await until(lambda: here.subscription.cursor.end == 2)
        assert [one.payload for one in here.storage.topic(str(LETTERS), create=False).read()] == [b"bad"]
        assert here.subscription.counts.dead_letters == 1


@run
async def test_letters_that_only_the_settings_ask_for_create_their_topic(tmp_path: Path) -> None:
    settings = AT_ONCE.model_copy(update={"poison": Poison.DEAD_LETTER})
    async with world(tmp_path, settings, letters_on_demand=False) as here:
        client = await here.consumer("c")
        await here.send("bad")
        await refuse(here, client, 0)
        await until(lambda: here.subscription.cursor.end == 1)
        assert str(dead_letter_topic(NAME)) in here.storage.topics()


@run
async def test_a_log_that_cannot_be_created_leaves_the_policy_of_before(tmp_path: Path) -> None:
    def stored(here: World) -> dict[str, bytes]:
        return {entry.key: entry.value for entry in here.meta.list("/")}

    async with world(tmp_path, letters_on_demand=False) as here:
        await here.consumer("c")
        await here.broker.policies.set(here.broker.topics[NAME], "s", lambda own: replace(own, redeliveries_max=7))
        await here.broker._progress.flush()
        before = stored(here)
        full = mock.patch.object(here.storage, "create_topic", side_effect=DiskFull("segment", "no room"))
        with full, pytest.raises(DiskFull):
            await set_policy(here, to(LETTERS), LETTERS)
        assert stored(here) == before
        assert json.loads(before[f"{SUBSCRIPTIONS}default/orders/s"])["policy"] == {"redeliveries_max": 7}
        assert here.subscription.own_policy == OwnPolicy(redeliveries_max=7)
        assert here.storage.topics() == [TOPIC]
        await set_policy(here, to(LETTERS), LETTERS)
        assert here.storage.topics() == [TOPIC, str(LETTERS)]


@run
async def test_a_topic_that_cannot_take_letters_is_refused_also_if_it_is_the_default_one(tmp_path: Path) -> None:
    async with world(tmp_path, letters_on_demand=False) as here:
        await here.consumer("c")
        default = dead_letter_topic(NAME)
        await here.broker.create_topics(default, 0, reliable=False, retention=None)
        with pytest.raises(TopicDiffers, match="must be a reliable topic"):
            await set_policy(here, OwnPolicy(poison=Poison.DEAD_LETTER), None)
        await here.broker.create_topics(LETTERS, 0, reliable=True, retention=None)
        with pytest.raises(TopicExists):
            await set_policy(here, to(LETTERS), LETTERS)
        assert here.subscription.own_policy == OwnPolicy()
        await set_policy(here, to(LETTERS), None)
        assert await here.broker.subscribe(TOPIC, "s", Kind.EXCLUSIVE, "c")

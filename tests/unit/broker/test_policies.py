"""A policy belongs to a subscription: set, stored, in force for it alone, and refused where it can't hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from broker_world import QUICK, TOPIC, Client, World, run, until, world

from frazil.broker.delivery.assignment import Kind
from frazil.broker.delivery.own_policy import BOUNDS, OwnPolicy
from frazil.broker.delivery.policy import DeliveryPolicy
from frazil.broker.store.records import SUBSCRIPTIONS
from frazil.broker.topics.replay import read_dead_letters, replay_all, replay_one
from frazil.broker.topics.topic import BrokerTopic
from frazil.core.errors import Closed, FrazilError, InvalidInput, SubscriptionNotFound, TopicDiffers, TopicExists
from frazil.core.names import TopicName
from frazil.core.settings.broker import Backoff, Poison

NAME = TopicName.parse(TOPIC)
KEY = f"{SUBSCRIPTIONS}default/orders/s"


async def change(here: World, **fields: Any) -> None:
    await here.admin.set_policy(NAME, "s", lambda own: replace(own, **fields))


def stored(here: World) -> dict[str, Any]:
    found = here.meta.get(KEY)
    assert found is not None
    return dict(json.loads(found.value))


@run
async def test_a_policy_holds_for_its_subscription_alone_and_from_then_on(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        mine = await here.consumer("c")
        other = Client(here, await here.broker.subscribe(TOPIC, "other", Kind.EXCLUSIVE, "c"))
        await change(here, max_unacked_messages=2, redeliveries_max=0, poison=Poison.DROP)
        await here.send("a", "b", "c", "d")
        assert [text for _, text in await mine.take(2)] == ["a", "b"]
        assert await mine.nothing_comes(), "its window is two messages"
        assert len(await other.take(4)) == 4
        for subscription in ("s", "other"):
            here.broker.subscription(TOPIC, subscription).nack(0, 0, "no")
        assert await mine.take() == [(2, "c")], "the refused one was dropped"
        assert await other.take() == [(0, "a")], "the other still has its redeliveries"


@run
async def test_a_wider_window_takes_effect_at_once(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK.model_copy(update={"max_unacked_messages": 1})) as here:
        client = await here.consumer("c")
        await here.send("a", "b", "c")
        await client.take()
        assert await client.nothing_comes()
        await change(here, max_unacked_messages=3)
        assert [text for _, text in await client.take(2)] == ["b", "c"]


@run
async def test_a_subscription_that_blocks_goes_on_under_a_policy_that_drops(tmp_path: Path) -> None:
    async with world(tmp_path, QUICK.model_copy(update={"redeliveries_max": 0})) as here:
        client = await here.consumer("c")
        await here.send("bad", "good")
        await client.take(2)
        here.subscription.nack(0, 0, "no")
        client.ack(1)
        await until(lambda: here.subscription.blocked_by == 0)
        await change(here, poison=Poison.DROP)
        await until(lambda: here.subscription.cursor.end == 2)


@run
async def test_what_was_set_survives_a_restart_and_the_rest_follows_the_settings(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.consumer("c")
        await change(here, ack_timeout_ms=1_234, backoff=Backoff.FIXED)
        await change(here, dead_letter_topic="/default/graveyard")
        assert stored(here) == {
            "kind": "exclusive",
            "policy": {"ack_timeout_ms": 1_234, "backoff": "fixed", "dead_letter_topic": "/default/graveyard"},
        }
    async with world(tmp_path, QUICK.model_copy(update={"redeliveries_max": 9})) as here:
        policy = here.subscription.policy
        assert (policy.ack_timeout_us, policy.backoff, policy.dead_letter_topic) == (
            1_234_000, Backoff.FIXED, "/default/graveyard",
        )  # fmt: skip
        assert policy.redeliveries_max == 9
        assert here.admin.policy(NAME, "s").policy == OwnPolicy(
            ack_timeout_ms=1_234, backoff=Backoff.FIXED, dead_letter_topic="/default/graveyard"
        )
        await here.admin.set_policy(NAME, "s", lambda _: OwnPolicy())
        assert here.subscription.policy.ack_timeout_us == 30_000_000
        assert stored(here)["policy"] == {}


@run
async def test_a_record_without_a_policy_has_the_defaults_and_a_damaged_one_too(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.consumer("c")
        here.meta.put_all({KEY: b'{"kind": "exclusive"}'})
    async with world(tmp_path) as here:
        assert here.subscription.policy == DeliveryPolicy.of(QUICK)
        here.meta.put_all({KEY: b'{"kind": "exclusive", "policy": {"ack_timeout_ms": -1, "later": 1}}'})
    async with world(tmp_path) as here:
        assert here.subscription.policy == DeliveryPolicy.of(QUICK)


@run
async def test_a_subscription_that_is_made_again_begins_with_the_defaults(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.consumer("c")
        await change(here, redeliveries_max=1)
        await here.admin.delete_subscription(NAME, "s")
        await here.consumer("c")
        assert here.subscription.policy.redeliveries_max == QUICK.redeliveries_max
        await here.admin.delete_subscription(NAME, "s")
        with pytest.raises(SubscriptionNotFound):
            await change(here, redeliveries_max=1)
        assert here.meta.get(KEY) is None


@run
async def test_a_policy_that_could_not_be_stored_is_not_in_force(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.consumer("c")
        await here.broker._progress.flush()
        here.meta.close()
        with pytest.raises(Closed):
            await change(here, redeliveries_max=1)
        assert here.subscription.policy == DeliveryPolicy.of(QUICK)
        assert here.subscription.own_policy == OwnPolicy()


REFUSED: list[tuple[dict[str, Any], str, type[FrazilError]]] = [
    *(({name: low - 1}, f"{name}: must be {low} to", InvalidInput) for name, (low, _) in BOUNDS.items()),
    *(({name: high + 1}, f"{name}: must be .* to {high}", InvalidInput) for name, (_, high) in BOUNDS.items()),
    ({"redelivery_delay_ms": 101}, "redelivery_delay_ms: .*redelivery_delay_ms_max = 100", InvalidInput),
    ({"dead_letter_topic": "letters"}, "dead_letter_topic: .*/namespace/topic", InvalidInput),
    ({"dead_letter_topic": TOPIC}, "dead_letter_topic: .* itself", InvalidInput),
    ({"dead_letter_topic": f"{TOPIC}-part-0"}, "dead_letter_topic: .* itself", InvalidInput),
    ({"dead_letter_topic": "/default/live"}, "must be a reliable topic", TopicDiffers),
    ({"dead_letter_topic": "/default/typed"}, "must be a topic of messages", TopicDiffers),
    ({"dead_letter_topic": "/default/many"}, "exists with partitions", TopicExists),
]


@run
async def test_a_policy_that_cannot_hold_is_refused_with_its_field_and_changes_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.consumer("c")
        await here.broker.create_topics(TopicName.parse("/default/live"), 0, reliable=False, retention=None)
        await here.broker.create_topics(TopicName.parse("/default/many"), 2, reliable=True, retention=None)
        here.storage.create_topic("/default/typed", schema=pa.schema([("a", pa.int64())]))
        before = stored(here)
        for fields, message, kind in REFUSED:
            with pytest.raises(kind, match=message) as refused:
                await change(here, **fields)
            if kind is InvalidInput:
                assert refused.value.field == next(iter(fields))
            assert here.subscription.policy == DeliveryPolicy.of(QUICK), fields
        assert stored(here) == before


@run
async def test_a_topic_that_keeps_nothing_has_no_policies(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.broker.create_topics(NAME, 0, reliable=False, retention=None)
        await here.consumer("c")
        with pytest.raises(TopicDiffers):
            here.admin.policy(NAME, "s")
        with pytest.raises(TopicDiffers):
            await change(here, redeliveries_max=1)


@run
async def test_dead_letters_go_to_the_topic_of_the_policy(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        client = await here.consumer("c")
        await change(here, redeliveries_max=0, poison=Poison.DEAD_LETTER, dead_letter_topic="/lost/found")
        assert here.admin.policy(NAME, "s").dead_letter_topic == "/lost/found"
        await here.send("bad")
        await client.take()
        here.subscription.nack(0, 0, "no")
        await until(lambda: here.subscription.cursor.end == 1)
        (letter,) = here.storage.topic("/lost/found", create=False).read()
        assert letter.payload == b"bad"
        assert here.storage.topics() == [TOPIC, "/lost/found"]
        assert read_dead_letters(here.storage, NAME, None, 9).letters == []
        source = TopicName.parse("/lost/found")
        assert read_dead_letters(here.storage, NAME, None, 9, source).letters == [letter]
        other = TopicName.parse("/default/other")
        assert read_dead_letters(here.storage, other, None, 9, source).letters == []
        with pytest.raises(InvalidInput, match="no dead letter of /default/other"):
            await replay_one(here.broker, BrokerTopic.publish, here.storage, other, 0, source)
        assert (await replay_all(here.broker, BrokerTopic.publish, here.storage, NAME, None, 9, source)).count == 1
        assert await client.take() == [(1, "bad")]

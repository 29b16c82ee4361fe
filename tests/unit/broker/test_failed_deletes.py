"""A deletion that the metadata store does not answer has changed nothing, and can be asked for again."""

from __future__ import annotations

from pathlib import Path
from unittest import mock

import pytest
from broker_world import TOPIC, run, world

import frazil
from frazil.core.names import TopicName

NAME = TopicName.parse(TOPIC)
AWAY = frazil.MetadataUnavailable("etcd", "it does not answer")


@run
async def test_a_topic(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await made.consumer("c")
        with mock.patch.object(made.meta, "delete_all", side_effect=AWAY), pytest.raises(frazil.MetadataUnavailable):
            await made.broker.delete_topic(NAME, force=True)
        await made.send("a")
        assert await client.take() == [(0, "a")], "its consumer is still served"
        await made.broker.delete_topic(NAME, force=True)
        assert NAME not in made.broker.topics
        assert TOPIC not in made.storage.topics()
        assert not made.meta.list("/")


@run
async def test_a_subscription(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        client = await made.consumer("c")
        topic = made.broker.topics[NAME]
        with mock.patch.object(made.meta, "delete_all", side_effect=AWAY), pytest.raises(frazil.MetadataUnavailable):
            await made.broker.delete_subscription(topic, "s")
        await made.send("a")
        assert await client.take() == [(0, "a")]
        client.ack(0)
        await made.broker.delete_subscription(topic, "s")
        with pytest.raises(frazil.SubscriptionNotFound):
            await made.broker.delete_subscription(topic, "s")
        assert not made.meta.list("/broker/subscriptions/")
        assert not made.meta.list("/persistent_storage/")

"""Progress of many subscriptions is stored together, and answers to no delivery count for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from unittest import mock

import pytest
from broker_world import TOPIC, run, until, world

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.broker.store.records import PROGRESS
from frazil.core.names import TopicName
from frazil.core.settings.broker import BrokerSettings

SUBSCRIPTIONS = 50


@run
async def test_all_that_moved_is_stored_in_one_transaction(tmp_path: Path) -> None:
    async with world(tmp_path, BrokerSettings(progress_flush_ms=500)) as made:
        await made.broker.create_producer(TOPIC, "p", reliable=True)
        streams = []
        for number in range(SUBSCRIPTIONS):
            consumer = await made.broker.subscribe(TOPIC, f"s{number}", Kind.SHARED, "c", ())
            _, subscription, _, stream = made.broker.connect(consumer)
            streams.append((subscription, stream))
        await made.send("a")
        for _, stream in streams:
            assert await stream.take() is not None
        stored: list[int] = []
        put_all = made.meta.put_all

        def counted(values: Mapping[str, bytes]) -> None:
            put_all(values)
            stored.append(sum(key.startswith(PROGRESS) for key in values))

        with mock.patch.object(made.meta, "put_all", counted):
            for subscription, stream in streams:
                subscription.ack(0, stream.incarnation)
            await until(lambda: sum(stored) >= SUBSCRIPTIONS)
        assert max(stored) == SUBSCRIPTIONS


@run
async def test_an_answer_to_no_delivery_is_refused(tmp_path: Path) -> None:
    """It may be for an earlier subscription of that name: to count it could pass over a message."""
    async with world(tmp_path) as made:
        client = await made.consumer("c")
        await made.send("a", "b")
        await client.take()
        with pytest.raises(frazil.InvalidInput, match="send the id back as it came"):
            made.subscription.ack(7)
        with pytest.raises(frazil.InvalidInput, match="send the id back as it came"):
            made.subscription.nack(7, None, "no")
        made.subscription.ack(0)  # it is out: there is no doubt
        made.subscription.ack(0)
        assert made.subscription.cursor.end == 1


@run
async def test_names_that_are_too_long_to_store_together_leave_nothing_behind(tmp_path: Path) -> None:
    async with world(tmp_path) as made:
        await made.broker.create_producer(TOPIC, "p", reliable=True)
        with pytest.raises(frazil.InvalidInput, match=r"consumer_name: with the names it belongs to it takes .* 1024"):
            await made.broker.subscribe(TOPIC, "é" * 100, Kind.SHARED, "é" * 255, ())
        assert not made.broker.topics[TopicName.parse(TOPIC)].subscriptions
        assert not made.meta.list("/broker/subscriptions/")
        with pytest.raises(frazil.InvalidInput, match="producer_name: with the names"):
            await made.broker.create_producer("/default/new", "é" * 250, reliable=True)
        assert "/default/new" not in made.storage.topics()
        with pytest.raises(frazil.TopicDiffers, match="its dispatch is reliable"):
            made.broker.check_producer(TOPIC, "q", reliable=False)

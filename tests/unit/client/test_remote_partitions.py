"""Partitions over the network: made, refused and deleted as on the folder."""

from __future__ import annotations

import asyncio

import pytest

import frazil
import frazil.aio
from frazil.core.settings import RetentionSettings
from frazil.doors.flight.door import FlightDoor

TOPIC = "/default/orders"
PARTS = [f"{TOPIC}-part-{number}" for number in range(3)]


def test_partitions_are_made_used_and_deleted(owner: frazil.Storage, remote: frazil.RemoteStorage) -> None:
    made = remote.create_partitions(TOPIC, 3, retention=RetentionSettings(bytes=1_000_000))
    assert [topic.name for topic in made] == PARTS == owner.topics()
    assert made[1].publish("tea") == 0
    assert [message.payload for message in owner.topic(PARTS[1]).read()] == [b"tea"]
    assert owner.record(PARTS[2]).retention == RetentionSettings(bytes=1_000_000)
    with pytest.raises(frazil.TopicExists):
        remote.create_partitions(TOPIC, 3)
    with pytest.raises(frazil.PartitioningDiffers):
        remote.topic(TOPIC)
    with pytest.raises(frazil.InvalidInput):
        remote.create_partitions("/default/more", 101)
    remote.delete_topic(TOPIC)
    assert owner.topics() == []


def test_partitions_awaited(owner: frazil.Storage, door: FlightDoor) -> None:
    async def work() -> None:
        async with await frazil.aio.connect(door.address, give_up_ms=10_000) as remote:
            made = await remote.create_partitions(TOPIC, 2)
            assert [topic.name for topic in made] == PARTS[:2]
            assert await made[0].publish("tea") == 0
            with pytest.raises(frazil.TopicExists):
                await remote.create_partitions(TOPIC, 2)
            await remote.delete_topic(TOPIC)

    asyncio.run(work())
    assert owner.topics() == []

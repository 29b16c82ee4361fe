"""The metadata store is put back from an older copy while no broker runs: no subscription passes over a message."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from broker_world import QUICK, TOPIC, Client, World, run

import frazil
from frazil.broker.broker import Broker
from frazil.broker.delivery.assignment import Kind
from frazil.broker.store.records import forget_topic
from frazil.core.clock import SystemClock
from frazil.core.names import TopicName
from frazil.meta.broker_keys import SUBSCRIPTIONS
from frazil.meta.sqlite import SqliteStore


@asynccontextmanager
async def copied(folder: Path) -> AsyncIterator[World]:
    """A broker whose metadata is elsewhere, with the copy of its records beside the data."""
    with frazil.open(folder / "data") as storage:
        made = World(storage, folder, QUICK)
        copy = SqliteStore(folder / "copy.db")
        made.broker = Broker(storage, made.meta, QUICK, SystemClock(), copy=copy)
        await made.broker.start()
        try:
            yield made
        finally:
            await made.broker.close()
            made.meta.close()
            copy.close()


def back_up(folder: Path) -> None:
    shutil.copy(folder / "meta.db", folder / "backup.db")


def restore(folder: Path) -> None:
    for name in ("meta.db", "meta.db-wal", "meta.db-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.copy(folder / "backup.db", folder / "meta.db")


@run
async def test_a_subscription_that_the_store_has_lost_goes_on_where_it_was_copied(folder: Path) -> None:
    async with copied(folder) as made:
        await made.send("before")
    back_up(folder)
    async with copied(folder) as made:
        client = await made.consumer("c", Kind.SHARED)
        await made.send("one", "two", "three")
        assert await client.take() == [(1, "one")]
        client.ack(1)
        number = client.id
        await made.broker.copy_all()
    restore(folder)
    async with copied(folder) as made:
        assert made.subscription.cursor.end == 2
        assert made.subscription.kind is Kind.SHARED
        client = Client(made, number)
        assert await client.take(2) == [(2, "two"), (3, "three")], "the consumer's id holds too"
        producer = await made.broker.create_producer(TOPIC, "p", reliable=True)
        assert made.broker.has_producer(producer.id)


@run
async def test_one_that_was_copied_only_when_it_was_made_is_delivered_from_there(folder: Path) -> None:
    async with copied(folder) as made:
        await made.send("before")
    back_up(folder)
    async with copied(folder) as made:
        client = await made.consumer("c")
        await made.send("one", "two")
        await client.take(2)
        client.ack(1, 2)
    restore(folder)
    async with copied(folder) as made:
        client = Client(made, client.id)
        assert await client.take(2) == [(1, "one"), (2, "two")], "again, and nothing is passed over"


@run
async def test_a_position_that_the_store_has_is_never_replaced_by_the_copied_one(folder: Path) -> None:
    async with copied(folder) as made:
        client = await made.consumer("c")
        await made.send("one", "two")
        await client.take(2)
        client.ack(0, 1)
    async with copied(folder) as made:
        assert made.subscription.cursor.end == 2


@run
async def test_what_was_deleted_does_not_come_back(folder: Path) -> None:
    async with copied(folder) as made:
        await made.consumer("c")
        await made.broker.subscribe(TOPIC, "stays", Kind.SHARED, "c")
        await made.broker.delete_subscription(made.broker.topics[TopicName.parse(TOPIC)], "s")
        await made.broker.copy_all()
    async with copied(folder) as made:
        with pytest.raises(frazil.InvalidInput, match="has no subscription 's'"):
            made.broker.subscription(TOPIC, "s")
        await made.broker.delete_topic(TopicName.parse(TOPIC), force=True)
        await made.send("anew")
    async with copied(folder) as made:
        assert [entry.key for entry in made.meta.list(SUBSCRIPTIONS)] == []


@run
async def test_subscriptions_of_a_topic_that_was_made_again_are_not_put_back(folder: Path) -> None:
    """It was deleted where no broker ran, so the copy still has them."""
    async with copied(folder) as made:
        await made.consumer("c")
        await made.send("old")
    with frazil.open(folder / "data") as storage:
        storage.delete_topic(TOPIC)
        storage.topic(TOPIC).publish(b"new")
    (folder / "meta.db").unlink()
    async with copied(folder) as made:
        await made.broker.make_known(TOPIC)
        with pytest.raises(frazil.InvalidInput, match="has no subscription 's'"):
            made.broker.subscription(TOPIC, "s")


@run
async def test_nor_if_a_broker_has_made_it_again(folder: Path) -> None:
    async with copied(folder) as made:
        await made.consumer("c")
        await made.send("old")
    with frazil.open(folder / "data") as storage:
        storage.delete_topic(TOPIC)
    with contextlib.closing(SqliteStore(folder / "meta.db")) as meta:
        forget_topic(meta, TopicName.parse(TOPIC))
    for _ in range(2):
        async with copied(folder) as made:
            await made.send("new")
            with pytest.raises(frazil.InvalidInput, match="has no subscription 's'"):
                made.broker.subscription(TOPIC, "s")

"""A topic's record and its log: the process is killed between any two steps of making, changing and deleting them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pyarrow as pa
from partitions_child import COLUMNS, HOUR
from test_partitions_kill import TOPIC, records, rounds, served

import frazil
from frazil.broker.broker import Broker
from frazil.core.names import TopicName
from frazil.meta.topic_records import TOPIC_RECORDS, LogIdentity, TopicIdentity, unpacked_schema
from frazil.node.topics.topics import Topics


def recorded(broker: Broker) -> dict[str, LogIdentity]:
    found = [TopicIdentity.decode(entry.value) for entry in broker.identities._meta.list(TOPIC_RECORDS)]
    return {str(name): one for record in found for name, one in record.logs.items()}


def check_all(tmp_path: Path, what: str, check: Callable[[Broker, Topics], Awaitable[bool]]) -> set[bool]:
    """Start a broker on what each kill has left, compare records with logs, and then `check` more."""

    async def checked(data: Path) -> bool:
        async with served(data) as broker:
            assert broker._directory._carrying is not None
            await broker._directory._carrying
            stored = {name: broker._storage.record(name).log_id for name in broker._storage.topics()}
            assert {name: one.log_id for name, one in recorded(broker).items()} == stored, data.name
            topics = Topics(broker._storage, lambda: broker)
            found = await check(broker, topics)
            await topics.run(topics.delete, TOPIC, force=True)
        assert records(data, "/split") == []
        return found

    return {asyncio.run(asyncio.wait_for(checked(data), 60)) for data in rounds(tmp_path, what)}


def test_a_typed_topic_that_was_being_made_is_there_or_not_and_can_be_made(tmp_path: Path) -> None:
    async def check(broker: Broker, topics: Topics) -> bool:
        was_there = str(TOPIC) in broker._storage.topics()
        made = await topics.run(topics.open, str(TOPIC), schema=COLUMNS)
        assert unpacked_schema(recorded(broker)[str(TOPIC)].schema) == made.schema == COLUMNS
        return was_there

    asyncio.run(_filled(tmp_path / "template"))
    assert check_all(tmp_path, "create-typed", check) == {False, True}


def test_a_retention_that_was_being_set_is_the_same_in_folder_and_record(tmp_path: Path) -> None:
    async def check(broker: Broker, topics: Topics) -> bool:
        own = topics.retention(TOPIC)
        assert own in (None, HOUR)
        assert recorded(broker)[str(TOPIC)].retention == (None if own is None else own.model_dump())
        return own is not None

    asyncio.run(_filled(tmp_path / "template", TOPIC))
    assert check_all(tmp_path, "retention", check) == {False, True}


def test_a_typed_topic_that_was_being_deleted_is_whole_or_gone(tmp_path: Path) -> None:
    async def check(broker: Broker, topics: Topics) -> bool:
        was_there = str(TOPIC) in broker._storage.topics()
        found = await topics.run(topics.open, str(TOPIC), schema=COLUMNS)
        assert found.stats().end == (1 if was_there else 0), "another under its name has none of its rows"
        return was_there

    template = tmp_path / "template"
    asyncio.run(_filled(template, TOPIC, typed=True))
    with frazil.open(template) as storage:
        storage.topic(str(TOPIC)).publish_many(pa.record_batch({"amount": [1]}, schema=COLUMNS))
    assert check_all(tmp_path, "delete", check) == {False, True}


async def _filled(data: Path, *names: TopicName, typed: bool = False) -> None:
    async with served(data) as broker:
        topics = Topics(broker._storage, lambda: broker)
        for name in names:
            await topics.run(topics.create, name, schema=COLUMNS if typed else None)

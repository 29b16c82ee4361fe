"""The records of topics in the metadata store: written before the logs, kept in line with the folder, carried over."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from broker_world import QUICK, TOPIC, World, run, world

import frazil
from frazil.broker.broker import Broker
from frazil.broker.topics.deleting import delete_with_records
from frazil.core.clock import SystemClock
from frazil.core.errors import (
    InvalidName,
    MetadataUnavailable,
    PartitioningDiffers,
    SchemaMismatch,
    TopicExists,
    TopicNotFound,
)
from frazil.core.names import TopicName
from frazil.core.settings import RetentionSettings, Settings
from frazil.meta.broker_keys import OWNER
from frazil.meta.opening import open_meta
from frazil.meta.topic_records import TOPIC_RECORDS, TopicIdentity, unpacked_schema
from frazil.node.topics.topics import Topics

NAME = TopicName.parse(TOPIC)
SPLIT = TopicName.parse("/default/split")
COLUMNS = pa.schema([("amount", pa.int64())])
WIDER = pa.schema([("amount", pa.int64()), ("note", pa.string())])
HOUR = RetentionSettings(age_ms=3_600_000)


def records(here: World) -> dict[str, TopicIdentity]:
    found = [TopicIdentity.decode(entry.value) for entry in here.meta.list(TOPIC_RECORDS)]
    return {str(one.topic): one for one in found}


def ids(here: World) -> dict[str, str]:
    return {name: here.storage.record(name).log_id for name in here.storage.topics()}


def recorded_ids(here: World) -> dict[str, str | None]:
    return {str(name): one.log_id for record in records(here).values() for name, one in record.logs.items()}


async def carried(here: World) -> None:
    assert here.broker._directory._carrying is not None
    await here.broker._directory._carrying


def topics_of(here: World) -> Topics:
    return Topics(here.storage, lambda: here.broker)


@run
async def test_every_way_to_make_a_topic_writes_its_record(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        topics = topics_of(here)
        await here.broker.create_producer(TOPIC, "p", reliable=True)
        await topics.run(topics.create, SPLIT, partitions=2, retention=HOUR)
        await topics.run(topics.create, TopicName.parse("/default/typed"), schema=COLUMNS)
        await topics.run(topics.open, "/default/opened")
        await topics.run(topics.create, TopicName.parse("/default/flight"), introduce=False)
        await topics.run(topics.create, TopicName.parse("/default/live"), reliable=False)
        assert recorded_ids(here) == {**ids(here), "/default/live": None}
        split = records(here)["/default/split"]
        assert (split.partitions, split.epoch, split.owner) == (2, 1, None)
        assert {one.retention and one.retention["age_ms"] for one in split.logs.values()} == {HOUR.age_ms}
        (typed,) = records(here)["/default/typed"].logs.values()
        assert unpacked_schema(typed.schema) == COLUMNS
        assert not here.broker.knows(TopicName.parse("/default/opened")), "only when a client first asks for it"


@run
async def test_what_is_set_for_a_topic_is_in_its_record(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        topics = topics_of(here)
        await topics.run(topics.create, NAME, schema=COLUMNS)
        await topics.run(topics.set_retention, TOPIC, HOUR)
        await topics.run(topics.change_schema, TOPIC, WIDER)
        (log,) = records(here)[TOPIC].logs.values()
        assert (unpacked_schema(log.schema), log.retention and log.retention["age_ms"]) == (WIDER, HOUR.age_ms)
        away = MetadataUnavailable("etcd", "it does not answer")
        with mock.patch.object(here.meta, "put_if", side_effect=away):
            await topics.run(topics.set_retention, TOPIC, None)
        assert here.storage.record(TOPIC).retention is None, "also while the store is away"
        await topics.run(topics.change_schema, TOPIC, WIDER)
        (log,) = records(here)[TOPIC].logs.values()
        assert log.retention is None, "the record follows with the next change"


@run
async def test_names_that_would_be_taken_for_one_another_are_refused_whatever_they_keep(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        topics = topics_of(here)
        await topics.run(topics.create, TopicName.parse("/default/live"), reliable=False)
        await topics.run(topics.create, TopicName.parse("/default/lives-part-0"), reliable=False)
        await topics.run(topics.create, SPLIT, partitions=2)
        before = here.meta.list("/")
        for wanted, how, error in (
            ("/default/LIVE", {}, InvalidName),
            ("/default/LIVE", {"reliable": False}, InvalidName),
            ("/default/live", {"introduce": False}, TopicExists),
            ("/default/live", {"schema": COLUMNS}, TopicExists),
            ("/default/live", {"partitions": 2, "introduce": False}, PartitioningDiffers),
            ("/default/lives", {"schema": COLUMNS}, PartitioningDiffers),
            ("/default/split", {"introduce": False}, PartitioningDiffers),
            ("/default/SPLIT", {"introduce": False}, InvalidName),
            ("/default/Split-part-7", {"reliable": False}, InvalidName),
            ("/default/split-part-01", {"introduce": False}, InvalidName),
            ("/default/typed", {"schema": pa.schema([("_offset", pa.int64())])}, SchemaMismatch),
        ):
            with pytest.raises(error):
                await topics.run(topics.create, TopicName.parse(wanted), **how)  # type: ignore[arg-type]
            assert here.meta.list("/") == before, f"{wanted} {how}: refused means no effect"
        with pytest.raises(TopicNotFound):
            await topics.run(topics.open, "/default/live")


@run
async def test_of_callers_at_once_one_makes_a_topic_and_all_find_it(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        topics = topics_of(here)
        calls: list[Any] = [topics.run(topics.create, NAME) for _ in range(6)]
        calls += [topics.run(topics.create, NAME, introduce=False) for _ in range(6)]
        found = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(one == [NAME] for one in found) == 1
        assert sum(isinstance(one, TopicExists) for one in found) == 11
        await asyncio.gather(
            *(topics.run(topics.open, "/default/second") for _ in range(4)),
            *(here.broker.create_producer("/default/second", f"p{number}", reliable=True) for number in range(4)),
        )
        assert recorded_ids(here) == ids(here)


@run
async def test_a_topic_goes_with_its_record(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        topics = topics_of(here)
        await topics.run(topics.create, NAME, schema=COLUMNS)
        await topics.run(topics.create, SPLIT, partitions=3)
        await topics.run(topics.delete, TopicName.parse("/default/split-part-2"))
        assert recorded_ids(here) == ids(here)
        assert records(here)["/default/split"].partitions == 2
        for name in (NAME, SPLIT):
            await topics.run(topics.delete, name)
        assert here.meta.list("/") == []
        await topics.run(topics.create, SPLIT, partitions=2, reliable=False)
        await topics.run(topics.delete, TopicName.parse("/default/split-part-1"))
        assert list(recorded_ids(here)) == ["/default/split-part-0"]
        await topics.run(topics.delete, SPLIT)
        assert here.meta.list("/") == []


@run
async def test_topics_that_were_made_or_changed_without_the_store_are_carried_over(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        topics = topics_of(here)
        for name in ("/default/changed", "/default/remade", "/default/gone", "/default/live"):
            await topics.run(topics.create, TopicName.parse(name), reliable=name != "/default/live")
        await topics.run(topics.create, SPLIT, partitions=3)
        here.meta.delete_all([TOPIC_RECORDS + "default/live"])  # as of a version that wrote none
    with frazil.open(tmp_path / "data") as storage:
        storage.topic("/default/embedded", schema=COLUMNS)
        storage.set_retention("/default/changed", HOUR)
        for name in ("/default/remade", "/default/gone", "/default/split-part-2"):
            storage.delete_topic(name)
        storage.topic("/default/remade")
    async with world(tmp_path) as here:
        await carried(here)
        assert recorded_ids(here) == {**ids(here), "/default/live": None}
        assert "/default/gone" not in records(here)
        (changed,) = records(here)["/default/changed"].logs.values()
        assert changed.retention == HOUR.model_dump()
        (embedded,) = records(here)["/default/embedded"].logs.values()
        assert unpacked_schema(embedded.schema) == COLUMNS
        assert records(here)["/default/split"].partitions == 2
        before = here.meta.snapshot("/").revision
    async with world(tmp_path) as here:
        await carried(here)
        assert here.meta.snapshot("/").revision == before, "what is in line is not written again"


@run
async def test_a_record_without_its_log_stays_while_somebody_uses_the_topic(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        await here.broker.create_producer(TOPIC, "p", reliable=True)
        await here.broker.create_topics(SPLIT, 0, reliable=True, retention=None)
    with frazil.open(tmp_path / "data") as storage:
        old = storage.record(TOPIC).log_id
        for name in storage.topics():
            storage.delete_topic(name)
    async with world(tmp_path) as here:
        await carried(here)
        assert recorded_ids(here) == {TOPIC: old}, "nothing used the other"
        with pytest.raises(TopicNotFound):
            await here.broker.make_known(TOPIC)
        await here.broker.create_producer(TOPIC, "p", reliable=True)
        assert recorded_ids(here) == ids(here), "the next creation replaces it"
        assert recorded_ids(here)[TOPIC] != old


@run
async def test_a_record_of_another_owner_is_left_alone(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.meta.put_all({OWNER: json.dumps({"folder": "mine"}).encode()})
        other = TopicIdentity(NAME, {}, "theirs", 4)
        here.meta.put_all({TOPIC_RECORDS + "default/orders": other.encode()})
        topics = topics_of(here)
        with pytest.raises(TopicExists):
            await topics.run(topics.create, NAME)
        with pytest.raises(InvalidName):
            await topics.run(topics.create, TopicName.parse("/default/Orders"), schema=COLUMNS)
        await asyncio.to_thread(here.broker.identities.carry_over_now)
        await topics.run(topics.create, SPLIT)
        assert records(here)[TOPIC] == other
        assert records(here)["/default/split"].owner == "mine"


def test_a_topic_deleted_where_no_broker_runs_goes_with_its_record(tmp_path: Path) -> None:
    async def fill() -> None:
        with frazil.open(settings) as storage, contextlib.closing(open_meta(settings)) as meta:
            broker = Broker(storage, meta, QUICK, SystemClock())
            await broker.start()
            await broker.create_topics(NAME, 0, reliable=True, retention=None)
            await broker.create_topics(SPLIT, 2, reliable=True, retention=None)
            await broker.close()

    settings = Settings.of_folder(tmp_path / "data")
    asyncio.run(fill())
    with frazil.open(settings) as storage, contextlib.closing(open_meta(settings)) as meta:
        delete_with_records(storage, "/default/split-part-1", force=False)
        (split,) = [TopicIdentity.decode(one.value) for one in meta.list(TOPIC_RECORDS) if "split" in one.key]
        assert list(map(str, split.logs)) == ["/default/split-part-0"]
        for name in (TOPIC, "/default/split"):
            delete_with_records(storage, name, force=False)
        assert meta.list("/") == []


@run
async def test_a_call_that_is_cancelled_while_it_waits_for_a_topic_does_not_hold_it(tmp_path: Path) -> None:
    name = TopicName.parse("/default/waited-for")
    async with world(tmp_path) as here:
        identities = here.broker.identities
        await asyncio.to_thread(identities.hold, name)
        waiting = asyncio.create_task(here.broker.create_topics(name, 0, reliable=True, retention=None))
        await asyncio.sleep(0.1)  # the thread waits by now; if it does not, nothing can leak
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        identities.release(name)
        made = here.broker.create_topics(name, 0, reliable=True, retention=None)
        assert await asyncio.wait_for(made, 30) == [name]

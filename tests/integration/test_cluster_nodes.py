"""Two nodes on one etcd and one object store: a topic goes from one to the other with all its users, and back."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pyarrow as pa
import pytest

from frazil.core import access
from frazil.core.access import Action
from frazil.core.clock import SystemClock
from frazil.core.errors import (
    FrazilError,
    InvalidSettings,
    LogFenced,
    LossNotAccepted,
    MessageRefused,
    MetadataInUse,
    NamespaceInUse,
    NotOwner,
    ObjectStoreUnavailable,
    ProducerFenced,
    QuotaExceeded,
    TopicNotFound,
    TopicUnavailable,
)
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.core.sequences import ProducerOpening, Sent
from frazil.core.settings import RetentionSettings, make_settings
from frazil.core.settings.broker import Poison
from frazil.doors.flight.door import FlightDoor
from frazil.meta.broker_keys import PRODUCERS, TAKEN_NAMES, TOPICS, topic_key
from frazil.meta.opening import open_meta
from frazil.meta.topic_records import topic_record_key
from frazil.node.node import open_node
from frazil.node.objects.parts import ObjectParts
from frazil.node.ownership.host import LocalLog
from frazil.objects.epoch import EpochClaim, begin_epoch
from frazil.objects.known import ObjectsOfLogs
from parts.cluster_nodes import WAIT_S, cluster_node, cluster_nodes, cluster_settings, until_available
from parts.etcd import Etcd, etcd_server

TOPIC = "/default/orders"
NAME = TopicName.parse(TOPIC)
ALICE = Principal("jwt:alice")


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    with etcd_server(tmp_path / "etcd") as server:
        yield server


def run(test: Callable[[Path, Etcd], Awaitable[None]]) -> Callable[[Path, Etcd], None]:
    @functools.wraps(test)
    def runs(tmp_path: Path, etcd: Etcd) -> None:
        asyncio.run(asyncio.wait_for(test(tmp_path, etcd), 120))  # type: ignore[arg-type]

    return runs


@run
async def test_a_topic_moves_to_the_other_broker_and_back_with_its_users(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        producer = await a.send(TOPIC, "first")
        consumer = await a.subscribe(TOPIC)
        await a.send(TOPIC, "one", "two", "three")
        assert await a.take(consumer, 3) == [(1, "one"), (2, "two"), (3, "three")]
        found = a.broker.subscription(TOPIC, "s")
        found.ack(1)
        found.ack(3)
        await b.hears_of(TOPIC)
        with pytest.raises(NotOwner) as refused:
            await b.publish(TOPIC, "wrong place")
        assert refused.value.fields["addresses"] == {"flight": "grpc://a.example:6660"}

        await a.ownership.move(NAME, "b")
        await b.owns(TOPIC)
        with pytest.raises(NotOwner):
            await a.publish(TOPIC, "wrong place")
        assert a.node.storage.names() == set()
        assert await b.take(consumer, 1) == [(2, "two")], "what was not acknowledged"
        assert await b.send(TOPIC, "four") == producer
        assert await b.payloads(TOPIC) == list(enumerate(["first", "one", "two", "three", "four"]))
        b.broker.subscription(TOPIC, "s").ack(2)

        await b.ownership.move(NAME, "a")
        await a.owns(TOPIC)
        assert await a.take(consumer, 1) == [(4, "four")]
        assert await a.publish(TOPIC, "five") == [5]
        assert [one for _, one in await a.payloads(TOPIC)] == ["first", "one", "two", "three", "four", "five"]


@run
async def test_settings_and_columns_of_a_topic_go_along(tmp_path: Path, etcd: Etcd) -> None:
    columns = pa.schema([("amount", pa.int64())])
    typed, name = "/default/typed", TopicName.parse("/default/typed")
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, name, schema=columns, retention=RetentionSettings(age_ms=123_456))
        rows = pa.record_batch({"amount": pa.array([1, 2, 3], pa.int64())})
        await a.node.publish(LOCAL, typed, rows)
        await a.ownership.move(name, "b")
        await b.owns(typed)
        topic = await asyncio.to_thread(b.node.topic, LOCAL, typed)
        assert topic.schema == columns
        assert (b.node.storage.record(typed).retention or RetentionSettings()).age_ms == 123_456
        assert (await b.node.publish(LOCAL, typed, rows)).start == 3


@run
async def test_a_broker_that_starts_again_opens_its_folder_and_only_that(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_node(cluster_settings(tmp_path, "b", etcd.endpoint)) as b:
        async with cluster_node(cluster_settings(tmp_path, "a", etcd.endpoint)) as a:
            await a.send(TOPIC, "one", "two")
            await b.send("/default/other", "theirs")
            await b.subscribe("/default/other")
            consumer = await a.subscribe(TOPIC)
        async with cluster_node(cluster_settings(tmp_path, "a", etcd.endpoint)) as a:
            await a.owns(TOPIC)
            assert await a.send(TOPIC, "three")
            assert await a.take(consumer, 1) == [(2, "three")]
            assert a.node.storage.topics() == [TOPIC]
            assert b.broker.subscription("/default/other", "s").name == "s"
            assert await b.send("/default/other", "more")


@run
async def test_a_topic_that_is_deleted_stays_deleted(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.send(TOPIC, "one")
        await a.subscribe(TOPIC)
        await a.ownership.move(NAME, "b")
        await b.owns(TOPIC)
        with pytest.raises(NotOwner):
            await a.node.delete_topic(LOCAL, NAME, force=True)
        await b.node.delete_topic(LOCAL, NAME, force=True)
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        assert list(a.ownership.topics()) == []
        with pytest.raises(TopicNotFound):
            await b.payloads(TOPIC)
        await a.send(TOPIC, "new")
        await a.owns(TOPIC)
        assert await a.payloads(TOPIC) == [(0, "new")]
        assert await a.subscribe(TOPIC), "as a new subscription"


def test_a_server_that_is_alone_and_a_cluster_refuse_the_prefix_of_each_other(tmp_path: Path, etcd: Etcd) -> None:
    alone = make_settings(
        {
            "data": str(tmp_path / "alone"),
            "metadata": {"type": "etcd", "endpoints": etcd.endpoint, "prefix": "/p"},
            "pipeline": {"enabled": False},
        }
    )
    member = cluster_settings(tmp_path, "a", etcd.endpoint, "/p")

    async def start(settings) -> None:  # type: ignore[no-untyped-def]
        with open_node(settings, serves=True) as node:
            await node.start()
            await node.stop()

    asyncio.run(start(member))
    with pytest.raises(MetadataInUse, match=r"used by a cluster of brokers; set cluster\.enabled: true to join it"):
        asyncio.run(start(alone))
    elsewhere = alone.metadata.model_copy(update={"prefix": "/q"})
    asyncio.run(start(alone.model_copy(update={"metadata": elsewhere})))
    with pytest.raises(MetadataInUse, match=r"the server of the data folder .*alone; it is not a cluster's"):
        asyncio.run(start(cluster_settings(tmp_path, "a", etcd.endpoint, "/q")))


@run
async def test_two_brokers_with_one_id_are_refused(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_node(cluster_settings(tmp_path, "a", etcd.endpoint)):
        with pytest.raises(MetadataInUse, match=r"this one is a"):
            async with cluster_node(cluster_settings(tmp_path / "copy", "a", etcd.endpoint)):
                pass


def test_the_folder_of_a_broker_is_opened_by_its_server_alone(tmp_path: Path) -> None:
    import frazil

    with pytest.raises(InvalidSettings, match=r"cluster\.enabled: the folder is that of a broker of a cluster"):
        frazil.open(cluster_settings(tmp_path, "a", "http://127.0.0.1:1"))


@run
async def test_rows_whose_loss_was_accepted_are_set_aside_at_their_broker(tmp_path: Path, etcd: Etcd) -> None:
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(cluster_settings(tmp_path, "b", etcd.endpoint)) as b:
        async with cluster_node(settings) as a:
            await a.send(TOPIC, "one", "two", "three")
            consumer = await a.subscribe(TOPIC)
        with pytest.raises(TopicUnavailable, match=r"start that broker again, or accept their loss"):
            await b.publish(TOPIC, "not here")
        with pytest.raises(LossNotAccepted):
            await b.ownership.move(NAME, "b")
        await b.ownership.move(NAME, "b", accept_loss=True)
        await b.owns(TOPIC)
        assert await b.publish(TOPIC, "new") == [0], "nothing had been uploaded"
        assert await b.take(consumer, 1) == [(0, "new")], "it was at offset 3, where nothing is any more"

        async with cluster_node(settings) as a:
            await a.ownership.settled()  # type: ignore[attr-defined]
            assert a.node.storage.names() == set()
            lost = settings.log_folder / "~lost" / "default" / "orders"
            (aside,) = lost.iterdir()
            assert any(b"three" in one.read_bytes() for one in aside.glob("*.wal"))
            await b.ownership.move(NAME, "a")
            await a.owns(TOPIC)
            assert await a.payloads(TOPIC) == [(0, "new")]


@run
async def test_a_lost_disk_is_not_taken_for_an_empty_topic(tmp_path: Path, etcd: Etcd) -> None:
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.send(TOPIC, "one")
    shutil.rmtree(tmp_path / "a")
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.ownership.settled()  # type: ignore[attr-defined]
        with pytest.raises(TopicUnavailable, match=r"were in the folder of this broker, which is not there"):
            await a.publish(TOPIC, "two")
        (warning,) = a.node.health(LOCAL).warnings()
        assert (warning["topic"], warning["error"]) == (TOPIC, "topic_unavailable")
        assert a.node.storage.names() == set()
        assert b.node.storage.names() == set()


@run
async def test_a_moved_topic_whose_owner_lost_its_disk_before_it_wrote_goes_on(tmp_path: Path, etcd: Etcd) -> None:
    """The rows are in the store since the move: a broker that never served them has nothing to lose."""
    async with cluster_node(cluster_settings(tmp_path, "b", etcd.endpoint)) as b:
        async with cluster_node(cluster_settings(tmp_path, "a", etcd.endpoint)) as a:
            await a.send(TOPIC, "one", "two")
            await a.ownership.move(NAME, "b")
            await b.owns(TOPIC)
            assert not (tmp_path / "a" / "log" / "default" / "orders").exists()
        assert await b.payloads(TOPIC) == [(0, "one"), (1, "two")]
        assert b.node.storage.topic(TOPIC).log.first_offset == 2, "its files begin behind the objects"


@run
async def test_a_fenced_broker_stores_no_more_and_serves_again_only_by_the_record(tmp_path: Path, etcd: Etcd) -> None:
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.send(TOPIC, "one")
        parts = a.node.storage.attachment
        assert isinstance(parts, ObjectParts)
        log = a.node.storage.topic(TOPIC).log
        thief = ObjectsOfLogs(parts.store, parts.objects.manifests).of(log.log_id)
        begin_epoch(thief, TOPIC, EpochClaim("thief"), SystemClock())
        with pytest.raises(LogFenced):
            await asyncio.to_thread(parts.uploader.finish, log)
        for _ in range(500):
            if parts.objects.of(log.log_id).load().epoch > 2:
                break
            await asyncio.sleep(0.02)
        assert parts.objects.of(log.log_id).load().epoch == 3, "the record still names it: it takes the log over again"
        await a.owns(TOPIC)
        assert await a.send(TOPIC, "two")
        assert await asyncio.to_thread(parts.uploader.finish, a.node.storage.topic(TOPIC).log) == 2


@run
async def test_numbered_producers_go_on_at_the_other_broker_without_a_duplicate(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.send(TOPIC, "first")
        log = a.node.storage.topic(TOPIC).log
        opened = await asyncio.to_thread(log.open_producer, "numbered", ProducerOpening("client-1"))
        epoch = opened.state.epoch
        batch = ["one", "two"]
        stored = await a.node.publish(LOCAL, TOPIC, batch, Sent("numbered", epoch, 0))
        await a.ownership.move(NAME, "b")
        await b.owns(TOPIC)
        there = b.node.storage.topic(TOPIC).log
        again = await asyncio.to_thread(there.open_producer, "numbered", ProducerOpening("client-1", held=epoch))
        assert again.resumed, "it keeps its epoch"
        assert again.state.next_sequence == 2
        assert await b.node.publish(LOCAL, TOPIC, batch, Sent("numbered", epoch, 0)) == stored, "stored already"
        assert (await b.node.publish(LOCAL, TOPIC, batch, Sent("numbered", epoch, 2))).start == 3
        with pytest.raises(ProducerFenced):
            await asyncio.to_thread(there.open_producer, "numbered", ProducerOpening("client-2", held=epoch))
        await b.node.delete_topic(LOCAL, NAME, force=True)
        with contextlib.closing(open_meta(b.node.settings)) as meta:
            assert meta.list(TAKEN_NAMES) == []


@run
async def test_dead_letters_go_to_the_broker_that_owns_their_topic(tmp_path: Path, etcd: Etcd) -> None:
    letters = "/default/orders-dead-letter"
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        door = FlightDoor(a.node, a.node.settings.flight.model_copy(update={"port": 0}))
        await door.start()
        try:
            a.node.addresses["flight"] = door.address
            await seen(lambda: any(door.address in one.addresses.values() for one in b.ownership.brokers()))
            await a.node.create_topic(LOCAL, TopicName.parse(letters))
            await b.send(TOPIC, "first")
            consumer = await b.subscribe(TOPIC)
            await b.node.admin(LOCAL).set_policy(
                NAME, "s", lambda own: replace(own, redeliveries_max=0, poison=Poison.DEAD_LETTER)
            )
            await b.send(TOPIC, "poison", "good")
            assert await b.take(consumer, 1) == [(1, "poison")]
            b.broker.subscription(TOPIC, "s").nack(1, None, "cannot be read")
            for _ in range(500):
                if found := await a.payloads(letters):
                    break
                await asyncio.sleep(0.02)
            assert found == [(0, "poison")]
            (message,) = a.node.storage.topic(letters).read()
            assert message.attributes["x-original-topic"] == TOPIC
            assert message.attributes["x-failure-reason"] == "cannot be read"
            assert message.producer == "p"
            assert b.node.storage.topics() == [TOPIC]
        finally:
            await door.stop()


@run
async def test_schemas_namespaces_and_their_settings_are_the_same_at_every_broker(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        first, second = a.node.registry(LOCAL), b.node.registry(LOCAL)
        schema = b'{"type": "object", "required": ["amount"]}'
        made = await asyncio.gather(
            *(
                asyncio.to_thread(one.register, subject, "json_schema", schema)
                for one, subject in ((first, "x"), (second, "y"), (first, "same"), (second, "same"))
            )
        )
        assert len({one.schema_id for one in made}) == 3
        assert made[2].schema_id == made[3].schema_id
        assert second.latest("x").info.schema_id == made[0].schema_id

        await a.send(TOPIC, '{"amount": 1}')
        checks = a.node._parts.checks  # type: ignore[union-attr]
        await asyncio.to_thread(b.node.schemas(LOCAL).configure, TOPIC, "x", "enforce", True)
        for _ in range(150):
            record, _ = a.node.schemas(LOCAL).kept(TOPIC) or (None, False)
            await checks.learn(TOPIC)
            if record is not None and record.subject == "x":
                break
            await asyncio.sleep(0.02)
        with pytest.raises(MessageRefused):
            await a.publish(TOPIC, "no")

        await asyncio.to_thread(b.node.namespaces(LOCAL).create, "made")
        assert "made" in await asyncio.to_thread(lambda: a.node.namespaces(LOCAL).names())
        await a.send("/theirs/one", "x")
        assert "theirs" in await asyncio.to_thread(lambda: b.node.namespaces(LOCAL).names())
        with pytest.raises(NamespaceInUse):
            await asyncio.to_thread(b.node.namespaces(LOCAL).delete, "theirs")


@run
async def test_the_topics_of_a_principal_count_at_whichever_broker_they_are(tmp_path: Path, etcd: Etcd) -> None:
    security = {"enabled": True, "quota": {"topics": 2}}
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b", security=security) as (a, b):
        await asyncio.to_thread(a.node.bindings(LOCAL).add, ALICE.name, "operator")
        await seen(lambda: b.node.gate.allows(ALICE, Action.CREATE, access.topic(TOPIC)))
        await a.node.create_topic(ALICE, TopicName.parse("/default/one"))
        await a.node.create_topic(ALICE, TopicName.parse("/default/two"))
        await seen(lambda: len(b.ownership.topics()) == 2)
        with pytest.raises(QuotaExceeded):
            await b.node.create_topic(ALICE, TopicName.parse("/default/three"))
        await a.ownership.move(TopicName.parse("/default/one"), "b")
        await b.owns("/default/one")
        with pytest.raises(QuotaExceeded):
            await a.node.create_topic(ALICE, TopicName.parse("/default/three"))
        await b.node.delete_topic(ALICE, TopicName.parse("/default/one"))
        await seen(lambda: len(a.ownership.topics()) == 1)
        await a.node.create_topic(ALICE, TopicName.parse("/default/three"))


async def seen(is_so: Callable[[], bool]) -> None:
    for _ in range(500):
        if is_so():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it was never seen")


@run
async def test_a_topic_acknowledged_by_the_store_moves_both_ways(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.node.create_topic(LOCAL, NAME, ack="object")
        assert await a.publish(TOPIC, "one", "two") == [0, 1]
        await a.ownership.move(NAME, "b")
        await b.owns(TOPIC)
        assert await b.publish(TOPIC, "three") == [2]
        assert await b.payloads(TOPIC) == [(0, "one"), (1, "two"), (2, "three")]
        assert b.node.storage.record(TOPIC).ack == "object"
        await b.ownership.move(NAME, "a")
        await a.owns(TOPIC)
        assert await a.publish(TOPIC, "four") == [3]
        assert [one for _, one in await a.payloads(TOPIC)] == ["one", "two", "three", "four"]
        for node in (a, b):
            assert not (node.node.settings.log_folder / "~lost").exists()


@run
async def test_a_log_that_another_process_took_over_acknowledges_nothing_and_is_opened_again(
    tmp_path: Path, etcd: Etcd
) -> None:
    async with cluster_node(cluster_settings(tmp_path, "a", etcd.endpoint)) as a:
        await a.node.create_topic(LOCAL, NAME, ack="object")
        await a.publish(TOPIC, "one")
        parts = a.node.storage.attachment
        assert isinstance(parts, ObjectParts)
        log_id = a.node.storage.record(TOPIC).log_id
        begin_epoch(ObjectsOfLogs(parts.store, None).of(log_id), TOPIC, EpochClaim("thief"), SystemClock())
        with pytest.raises(FrazilError):
            await a.publish(TOPIC, "fenced")
        async with asyncio.timeout(WAIT_S):
            while True:
                with contextlib.suppress(FrazilError):
                    (offset,) = await a.publish(TOPIC, "two")
                    break
                await asyncio.sleep(0.05)
        rows = await a.payloads(TOPIC)
        assert [at for at, _ in rows] == list(range(offset + 1))
        assert [one for _, one in rows if one != "fenced"] == ["one", "two"], "what was refused may be stored later"


@run
async def test_a_deletion_that_a_crash_interrupted_is_finished_at_the_next_start(tmp_path: Path, etcd: Etcd) -> None:
    settings = cluster_settings(tmp_path, "a", etcd.endpoint)
    async with cluster_node(settings) as a:
        await a.send(TOPIC, "one")
        await a.send("/default/other", "kept")
    with contextlib.closing(open_meta(settings)) as meta:  # all its records are gone, and its folder is still there
        meta.delete_all([topic_record_key(NAME), topic_key(TOPICS, NAME)], [topic_key(PRODUCERS, NAME) + "/"])
    async with cluster_node(settings) as a:
        assert not (settings.log_folder / "default" / "orders").exists()
        (aside,) = (settings.log_folder / "~lost" / "default" / "orders").iterdir()
        assert any(b"one" in one.read_bytes() for one in aside.glob("*.wal")), "its rows were nowhere else"
        await a.owns("/default/other")
        assert await a.payloads("/default/other") == [(0, "kept")]
        await a.send(TOPIC, "new")
        assert await a.payloads(TOPIC) == [(0, "new")]


@run
async def test_a_topic_that_cannot_be_uploaded_stays_and_goes_on(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_nodes(tmp_path, etcd.endpoint, "a", "b") as (a, b):
        await a.send(TOPIC, "first")
        consumer = await a.subscribe(TOPIC)
        await a.send(TOPIC, "one")
        parts = a.node.storage.attachment
        assert isinstance(parts, ObjectParts)
        with (
            mock.patch.object(parts.uploader, "finish", side_effect=ObjectStoreUnavailable("the store", "it is away")),
            pytest.raises(TopicUnavailable, match="it is away"),
        ):
            await a.ownership.move(NAME, "b")
        await a.owns(TOPIC)
        assert await a.send(TOPIC, "two")
        assert await a.take(consumer, 2) == [(1, "one"), (2, "two")]
        assert b.node.storage.names() == set()
        await a.ownership.move(NAME, "b")
        await b.owns(TOPIC)
        assert [one for _, one in await b.payloads(TOPIC)] == ["first", "one", "two"]


@run
async def test_a_topic_that_is_deleted_and_created_again_at_once_keeps_its_new_log(tmp_path: Path, etcd: Etcd) -> None:
    async with cluster_node(cluster_settings(tmp_path, "a", etcd.endpoint)) as a:
        await a.send(TOPIC, "old")
        for number in range(10):
            await a.node.delete_topic(LOCAL, NAME, force=True)
            await until_available(lambda: a.send(TOPIC, f"new {number}"))  # noqa: B023 - awaited at once
            await a.ownership.settled()  # type: ignore[attr-defined]
            assert await a.payloads(TOPIC) == [(0, f"new {number}")]
        assert not (a.node.settings.log_folder / "~lost").exists()


@run
async def test_a_folder_is_discarded_only_if_it_is_the_one_that_was_seen(tmp_path: Path, etcd: Etcd) -> None:
    """The decision was made for a log that was deleted and created again since."""
    async with cluster_node(cluster_settings(tmp_path, "a", etcd.endpoint)) as a:
        await a.send(TOPIC, "kept")
        host = a.ownership._owned._host  # type: ignore[attr-defined]
        host._local = {**host._local, NAME: LocalLog("a former log", 1)}
        await host.discard(NAME)
        assert await a.payloads(TOPIC) == [(0, "kept")]
        assert host.local()[NAME].log_id == a.node.storage.record(TOPIC).log_id

"""The quotas of topics and stored bytes, through the Node: counted by creator, for as long as the topics exist."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from frazil.core import access
from frazil.core.access import Action
from frazil.core.errors import InvalidName, QuotaExceeded, TopicExists
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.core.settings import Settings
from frazil.doors.http.door import make_app
from frazil.log.storage import open_storage
from frazil.meta.topic_records import creator_key
from frazil.node.access.topic_quotas.creators import Creator
from frazil.node.node import Node, open_node
from frazil.node.publish.publishers import BatchPublisher

ALICE, BOB = Principal("jwt:alice"), Principal("jwt:bob")
BASE = TopicName.parse("/shop/orders")


def name(number: int) -> TopicName:
    return TopicName.parse(f"/shop/t{number}")


@asynccontextmanager
async def started(
    folder: Path, broker: bool, default: Mapping[str, int], quota: Mapping[str, int]
) -> AsyncIterator[Node]:
    """A Node with security on, where Alice and Bob may do everything, and Alice has a quota."""
    security = {"enabled": True, "quota": default, "quotas": {ALICE.name: quota}}
    given = {"data": folder, "security": security}
    with open_node(Settings.model_validate(given), serves=broker) as node:
        await node.start()
        try:
            for who in (ALICE, BOB):
                await asyncio.to_thread(node.bindings(LOCAL).add, who.name, "admin")
            yield node
        finally:
            node.end_streams()
            await node.stop()


def run(
    folder: Path,
    work: Callable[[Node], Awaitable[None]],
    *,
    broker: bool = True,
    default: Mapping[str, int] | None = None,
    **quota: int,
) -> None:
    async def inside() -> None:
        async with started(folder, broker, default or {}, quota) as node:
            await asyncio.wait_for(work(node), 60)

    asyncio.run(inside())


async def refused(call: Awaitable[Any], quota: str) -> QuotaExceeded:
    with pytest.raises(QuotaExceeded) as caught:
        await call
    assert caught.value.fields["quota"] == quota
    assert caught.value.fields["retry_after_ms"] > 0
    return caught.value


def record(node: Node, topic: TopicName = BASE) -> Creator | None:
    entry = node.access_parts(LOCAL).gate.directory.read(creator_key(topic))
    return None if entry is None else Creator.decode(entry.value)


@pytest.mark.parametrize("broker", [True, False])
def test_a_principal_creates_as_many_topics_as_its_quota_and_again_after_a_deletion(
    tmp_path: Path, broker: bool
) -> None:
    async def work(node: Node) -> None:
        for number in range(2):
            await node.create_topic(ALICE, name(number))
        error = await refused(node.create_topic(ALICE, name(2)), "topics")
        assert error.fields["limit"] == 2
        assert error.fields["principal"] == ALICE.name
        assert len(node.storage.topics()) == 2
        assert record(node, name(2)) is None
        for number in range(3, 6):
            await node.create_topic(BOB, name(number))
        await node.create_topic(LOCAL, name(6))
        await node.delete_topic(ALICE, name(0))
        assert record(node, name(0)) is None
        await node.create_topic(ALICE, name(2))
        await refused(node.create_topic(ALICE, name(0)), "topics")

    run(tmp_path / "data", work, broker=broker, topics=2)


def test_topics_are_counted_after_a_restart(tmp_path: Path) -> None:
    async def create(node: Node) -> None:
        await node.create_topic(ALICE, name(0))

    async def again(node: Node) -> None:
        await refused(node.create_topic(ALICE, name(1)), "topics")

    run(tmp_path / "data", create)  # remembered without a quota
    run(tmp_path / "data", again, topics=1)


def test_each_partition_counts_and_all_or_none_are_created(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await refused(node.create_topic(ALICE, BASE, partitions=4), "topics")
        assert node.storage.topics() == []
        await node.create_topic(ALICE, BASE, partitions=3)
        await refused(node.create_topic(ALICE, name(0)), "topics")
        found = record(node)
        assert found is not None
        assert found.logs is not None
        assert {str(one) for one in found.logs} == set(node.storage.topics())

    run(tmp_path / "data", work, topics=3)


def test_non_reliable_and_opened_topics_count(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await node.create_topic(ALICE, name(0), reliable=False)
        topics = node.topics(ALICE)
        await topics.run(topics.open, str(name(1)), by=ALICE)
        await topics.run(topics.open, str(name(1)), by=ALICE)  # it exists
        await refused(topics.run(topics.open, str(name(2)), by=ALICE), "topics")
        await refused(node.create_topic(ALICE, name(2)), "topics")
        await node.delete_topic(ALICE, name(0))
        await node.create_topic(ALICE, name(2))

    run(tmp_path / "data", work, topics=2)


def test_concurrent_creations_do_not_exceed_the_quota_together(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        calls = [node.create_topic(ALICE, name(number)) for number in range(12)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sum(isinstance(one, list) for one in answers) == len(node.storage.topics()) == 3
        assert sum(isinstance(one, QuotaExceeded) for one in answers) == 9

    run(tmp_path / "data", work, topics=3)


def test_a_refused_creation_leaves_the_creator_as_it_was(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await node.create_topic(BOB, BASE)
        before = record(node)
        with pytest.raises(TopicExists):
            await node.create_topic(ALICE, BASE)
        with pytest.raises(InvalidName):
            await node.create_topic(ALICE, TopicName.parse("/shop/ORDERS"))
        with pytest.raises(TopicExists):
            await node.create_topic(ALICE, BASE, partitions=1)
        assert record(node) == before
        assert before is not None
        assert before.principal == BOB.name
        await node.create_topic(ALICE, name(0))  # nothing of it was charged

    run(tmp_path / "data", work, topics=1)


def test_a_creation_that_fails_leaves_no_record(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        wrong = TopicName.parse("/.shop/orders")  # no catalog can have this namespace
        with pytest.raises(InvalidName):
            await node.create_topic(ALICE, wrong)
        assert record(node, wrong) is None
        assert node.access_parts(LOCAL).gate.directory.creators.of_principal(ALICE.name) == []

    run(tmp_path / "data", work, topics=1)


def test_the_http_door_answers_429(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        key, secret = await asyncio.to_thread(node.keys(LOCAL).create, "tests")
        await asyncio.to_thread(node.bindings(LOCAL).add, key.principal, "operator")
        headers = {"authorization": f"Bearer {secret}"}
        transport = httpx.ASGITransport(make_app(node))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            answers = [await client.post("/v1/topics", json={"topic": str(name(number))}) for number in range(2)]
        assert [one.status_code for one in answers] == [201, 429], [one.text for one in answers]
        assert "quota topics = 1" in answers[1].text

    run(tmp_path / "data", work, default={"topics": 1})


def test_a_topic_that_was_recreated_elsewhere_is_charged_to_nobody(tmp_path: Path) -> None:
    async def create(node: Node) -> None:
        await node.create_topic(ALICE, name(0))

    async def again(node: Node) -> None:
        assert record(node, name(0)) is not None  # stale
        await node.create_topic(ALICE, name(1))
        await refused(node.create_topic(ALICE, name(2)), "topics")
        await node.publish(BOB, str(name(0)), [b"x" * 4_000])
        await node.publish(BOB, str(name(0)), [b"x"])

    run(tmp_path / "data", create, broker=False)
    with open_storage(Settings.model_validate({"data": tmp_path / "data"})) as storage:
        storage.delete_topic(str(name(0)))
        storage.create_topic(str(name(0)))
    run(tmp_path / "data", again, broker=False, topics=1, stored_bytes=1_000)


def test_rows_are_charged_to_the_creator_of_the_topic_whoever_publishes(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await node.create_topic(ALICE, name(0))
        await node.create_topic(ALICE, name(1))
        await node.create_topic(BOB, name(2))
        await node.publish(BOB, str(name(0)), [b"x" * 20_000])
        for who, topic in ((ALICE, name(0)), (ALICE, name(1)), (BOB, name(1))):
            error = await refused(node.publish(who, str(topic), [b"y"]), "stored_bytes")
            assert error.fields["limit"] == 10_000
            assert (ALICE.name in str(error)) is (who is ALICE)  # nobody else learns who created it
        assert node.storage.topic(str(name(1)), create=False).stats().end == 0
        await node.publish(ALICE, str(name(2)), [b"z" * 20_000])
        await node.publish(ALICE, str(name(2)), [b"z"])
        await node.publish(LOCAL, str(name(0)), [b"local"])
        await node.delete_topic(ALICE, name(0))
        await eventually(lambda: node.publish(ALICE, str(name(1)), [b"y"]))

    run(tmp_path / "data", work, stored_bytes=10_000)


def test_stored_bytes_are_measured_after_a_restart(tmp_path: Path) -> None:
    async def fill(node: Node) -> None:
        await node.create_topic(ALICE, name(0))
        await node.publish(ALICE, str(name(0)), [b"x" * 20_000])

    async def again(node: Node) -> None:
        await refused(node.publish(ALICE, str(name(0)), [b"y"]), "stored_bytes")

    run(tmp_path / "data", fill)
    run(tmp_path / "data", again, stored_bytes=10_000)


def test_without_such_a_quota_nothing_is_measured(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        await node.create_topic(ALICE, name(0))
        publisher = await asyncio.to_thread(node.publisher, ALICE, str(name(0)))
        assert isinstance(publisher, BatchPublisher)
        assert publisher._charge is None
        assert node.messages(ALICE)._stored is None

    run(tmp_path / "data", work, topics=5)


def test_a_new_creator_does_not_drop_decisions(tmp_path: Path) -> None:
    async def work(node: Node) -> None:
        directory = node.access_parts(LOCAL).gate.directory
        assert node.gate.allows(ALICE, Action.CREATE, access.topic(str(BASE)))
        before = directory.generation
        await node.create_topic(ALICE, name(0))
        await node.delete_topic(ALICE, name(0))
        assert directory.generation == before

    run(tmp_path / "data", work)


async def eventually(call: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a call, as its error says, until it succeeds. The timeout of the test ends it."""
    while True:
        try:
            await call()
        except QuotaExceeded as error:
            await asyncio.sleep(error.fields["retry_after_ms"] / 1_000)
        else:
            return

"""Frazil's own client against a real `frazil serve`: asyncio, subscriptions, crowds, and those who are slow."""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import textwrap
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pytest
from danube.consumer import SubType

import frazil
import frazil.aio
from frazil.cli.target.server import Server as Asked
from frazil.core.settings import MIB
from parts.cut_proxy import cut_proxy
from parts.danube import Server, connect, producer, subscriber
from parts.processes import pause

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "client.md"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("client"), redelivery_delay_ms=100, ack_timeout_ms=60_000)
    server.start()
    try:
        yield server
        assert server.stop() == 0
        assert "Traceback" not in server.log()
    finally:
        server.kill()


@pytest.fixture
def remote(server: Server) -> Iterator[frazil.RemoteStorage]:
    with frazil.connect(server.flight) as storage:
        yield storage


@pytest.fixture
def topic(remote: frazil.RemoteStorage, request: pytest.FixtureRequest) -> frazil.RemoteTopic:
    return remote.topic(f"/default/{request.node.name.split('[')[0][:100]}")


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 100))


def memory(server: Server) -> int:
    assert server.process is not None
    return int(psutil.Process(server.process.pid).memory_info().rss)


# --- asyncio


def test_many_tasks_share_batches_and_read_them_back(server: Server) -> None:
    async def work() -> None:
        async with await frazil.aio.connect(server.flight) as storage:
            topic = await storage.topic("/default/aio")
            offsets = await asyncio.gather(*(topic.publish(f"{number}") for number in range(2_000)))
            assert sorted(offsets) == list(range(2_000))
            assert await topic.publish_many(["a", "b"]) == frazil.OffsetRange(2_000, 2_002)
            messages = [message async for message in topic.read()]
            assert [message.payload for message in messages[:2_000]] == [
                str(offsets.index(offset)).encode() for offset in range(2_000)
            ]
            assert (await topic.stats()).end == await topic.sync() == 2_002
            assert "/default/aio" in await storage.topics()
            with pytest.raises(frazil.TopicNotFound):
                await storage.topic("/default/absent", create=False)
            with pytest.raises(frazil.OffsetOutOfRange):
                await anext(topic.read(5_000))

    run(work())


def test_many_followers_wait_at_once(server: Server) -> None:
    async def work() -> None:
        async with await frazil.aio.connect(server.flight) as storage:
            topic = await storage.topic("/default/followed")

            async def follow(messages: AsyncIterator[frazil.Message]) -> bytes:
                try:
                    return (await anext(messages)).payload
                finally:
                    await messages.aclose()  # type: ignore[attr-defined]

            following = [asyncio.create_task(follow(topic.read("earliest", follow=True))) for _ in range(40)]
            await asyncio.sleep(0.5)
            await topic.publish("tea")
            assert await asyncio.wait_for(asyncio.gather(*following), 30) == [b"tea"] * 40

    run(work())


# --- subscriptions


def test_a_subscription_delivers_what_is_not_acknowledged_again(topic: frazil.RemoteTopic) -> None:
    with topic.subscribe("cooks", consumer="kitchen") as messages:
        topic.publish_many(["tea", "milk", "rice"])
        first, second, third = (next(messages) for _ in range(3))
        assert [first.payload, second.payload, third.payload] == [b"tea", b"milk", b"rice"]
        messages.ack(first.offset)
        messages.nack(second.offset, delay_ms=0, reason="too hot")
        assert next(messages) == second
    with topic.subscribe("cooks", consumer="kitchen") as messages:
        again = {next(messages).payload for _ in range(2)}
        assert again == {b"milk", b"rice"}


def test_an_exclusive_subscription_has_one_consumer(topic: frazil.RemoteTopic) -> None:
    with topic.subscribe("cooks", consumer="kitchen"):
        with pytest.raises(frazil.SubscriptionTaken) as taken:
            topic.subscribe("cooks", consumer="bar")
        assert taken.value.consumer == "kitchen"
    with pytest.raises(frazil.InvalidInput, match="kind"):
        topic.subscribe("cooks", kind="nonsense")


def test_the_newest_consumer_of_a_name_has_it_and_the_other_does_not_come_back(
    topic: frazil.RemoteTopic, caplog: pytest.LogCaptureFixture
) -> None:
    with topic.subscribe("s", kind="shared", consumer="kitchen") as first:
        topic.publish("tea")
        assert next(first).payload == b"tea"
        assert not caplog.records
        with topic.subscribe("s", kind="shared", consumer="kitchen") as second:
            assert [record.levelname for record in caplog.records] == ["WARNING"]
            with pytest.raises(frazil.ConsumerReplaced, match="its own name"):
                next(first)
            message = next(second)
            assert message.payload == b"tea", "it had no answer"
            second.ack(message.offset)


def test_a_subscription_goes_on_after_a_cut(server: Server, remote: frazil.RemoteStorage) -> None:
    published = remote.topic("/default/cut")
    with cut_proxy(server.flight_port) as proxy, frazil.connect(proxy.address) as behind:
        with behind.topic("/default/cut").subscribe("cooks", consumer="kitchen") as messages:
            came: list[int] = []
            for number in range(30):
                published.publish(f"{number}")
                message = next(messages)
                while message.offset in came:  # its acknowledgement was cut off
                    messages.ack(message.offset)
                    message = next(messages)
                came.append(message.offset)
                messages.ack(message.offset)
                if number % 10 == 5:
                    proxy.cut_now()
        assert came == list(range(30))


def test_both_sorts_of_clients_share_a_subscription(server: Server, remote: frazil.RemoteStorage) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, "/default/both")
        async with await frazil.aio.connect(server.flight) as storage:
            topic = await storage.topic("/default/both")
            async with (
                subscriber(client, "stock", SubType.SHARED, topic="/default/both", subscription="cooks") as stock,
                await topic.subscribe("cooks", kind="shared", consumer="own") as own,
            ):
                for number in range(10):
                    await sender.send(f"{number}".encode())
                mine = []
                for _ in range(5):
                    message = await asyncio.wait_for(anext(own), 20)
                    mine.append(message.payload)
                    await own.ack(message.offset)
                theirs = [one.payload for one in await stock.take(5)]
                assert sorted(mine + theirs) == [f"{number}".encode() for number in range(10)]

    run(work())


# --- those who are slow, and those who are many


def test_a_reader_that_takes_nothing_holds_no_memory_and_nobody_up(
    server: Server, topic: frazil.RemoteTopic, remote: frazil.RemoteStorage
) -> None:
    for _ in range(12):
        topic.publish_many([bytes(MIB)] * 8)
    before = memory(server)
    slow = [topic.read_batches() for _ in range(20)]
    for reader in slow:
        next(reader)
    pause(1)
    assert memory(server) - before < 20 * 3 * 8 * MIB  # each holds a batch or two of the twelve that it is to have
    other = remote.topic("/default/quick")
    for number in range(20):
        assert other.publish("x") == number
    assert sum(batch.num_rows for batch in topic.read_batches()) == 96
    for reader in slow:
        reader.close()


def test_a_flood_at_the_limits_is_bounded_and_leaves_others_their_turn(
    server: Server, topic: frazil.RemoteTopic, remote: frazil.RemoteStorage
) -> None:
    """Four clients with batches of almost 16 MiB each, without a pause; beside them one with single messages."""
    largest = pa.RecordBatch.from_arrays([pa.array([bytes(MIB)] * 15, pa.binary())], names=["_payload"])
    ending = threading.Event()
    sent: list[int] = []

    def flood(storage: frazil.RemoteStorage) -> None:
        flooded = storage.topic(topic.name)
        while not ending.is_set() and len(sent) < 100:
            sent.append(len(flooded.publish_many(largest)))

    before = memory(server)
    with contextlib.ExitStack() as stack:
        floods = [stack.enter_context(frazil.connect(server.flight)) for _ in range(4)]
        threads = [threading.Thread(target=flood, args=(one,)) for one in floods]
        for thread in threads:
            thread.start()
        other, taken, highest = remote.topic("/default/beside"), [], 0
        for _ in range(30):
            started = time.perf_counter()
            other.publish("x")
            taken.append(time.perf_counter() - started)
            highest = max(highest, memory(server) - before)
        ending.set()
        for thread in threads:
            thread.join(60)
    assert sent
    assert highest < 600 * MIB  # 256 MiB of batches, each of them once as received and once as written
    assert statistics.median(taken) < 2
    remote.delete_topic(topic.name)


def crowd(server: Server, count: int, each: int) -> None:
    """Each with a connection of its own, all at once; the answers are spread fairly."""
    before = memory(server)
    done: dict[int, list[float]] = {}
    ready = threading.Barrier(count + 1)

    def publish(number: int) -> None:
        with frazil.connect(server.flight, give_up_ms=100_000) as storage:
            topic = storage.topic(f"/default/crowd-{count}")
            topic.publish(f"{number}:first")
            ready.wait(110)
            times = done.setdefault(number, [])
            started = time.perf_counter()
            for at in range(each):
                topic.publish(f"{number}:{at}")
                times.append(time.perf_counter() - started)

    threads = [threading.Thread(target=publish, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    ready.wait(110)
    for thread in threads:
        thread.join(110)
    assert len(done) == count
    assert all(len(times) == each for times in done.values())
    ends = sorted(times[-1] for times in done.values())
    assert ends[-1] < 10 * ends[count // 2] + 1, "the last of them waited much longer than most"
    assert memory(server) - before < 400 * MIB
    with frazil.connect(server.flight) as storage:
        payloads = [message.payload for message in storage.topic(f"/default/crowd-{count}").read()]
    assert len(payloads) == len(set(payloads)) == count * (each + 1)


def test_a_crowd_of_clients_is_served_fairly(server: Server) -> None:
    crowd(server, 60, 10)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_crowd_of_500_clients_is_served_fairly(server: Server) -> None:
    crowd(server, 500, 10)


# --- the guide


def test_the_programs_of_the_guide_run(server: Server) -> None:
    first, second = (part.split("```")[0] for part in GUIDE.read_text(encoding="utf-8").split("```text\n")[1:3])
    first, second = (one.replace("grpc://127.0.0.1:6660", server.flight) for one in (first, second))
    names: dict[str, Any] = {}
    exec(first, names)
    assert names["message"].payload == b"soup"
    exec("async def guide():\n" + textwrap.indent(second + "return message.payload", "    "), names)
    assert run(names["guide"]()) == b"tea"


ORDER = {"type": "object", "properties": {"tea": {"type": "string"}}, "required": ["tea"]}


def named(schema_id: int, *payloads: bytes) -> pa.RecordBatch:
    columns = {"_payload": list(payloads), "_schema_id": [schema_id] * len(payloads)}
    return pa.RecordBatch.from_pydict(
        columns, schema=pa.schema([("_payload", pa.binary()), ("_schema_id", pa.int64())])
    )


def test_a_topic_enforces_its_schema_for_every_client(server: Server, remote: frazil.RemoteStorage) -> None:
    http, name = Asked(server.http), "/default/enforced"
    topic = remote.topic(name)
    topic.publish("anything")
    definition = {"schema_type": "json_schema", "definition": json.dumps(ORDER)}
    schema_id = http.post("/v1/schemas/tea%20orders/versions", definition)["schema_id"]
    policy = {"subject": "tea orders", "validation_policy": "enforce", "enable_payload_validation": True}
    http.put(f"/v1/topics{name}/schema", policy)
    with pytest.raises(frazil.MessageRefused, match=f"no schema id, and tea orders has {schema_id}"):
        topic.publish('{"tea": "green"}')
    with pytest.raises(frazil.MessageRefused, match=r"row 1: the payload does not fit"):
        topic.publish_many(named(schema_id, b'{"tea": "green"}', b'{"tea": 7}'))
    with pytest.raises(frazil.MessageRefused, match=r"row 0"):
        topic.publish_many(named(schema_id + 1, b'{"tea": "green"}'))
    assert topic.publish_many(named(schema_id, b'{"tea": "green"}')) == frazil.OffsetRange(1, 2)
    http.put(f"/v1/topics{name}/schema", policy | {"validation_policy": "none"})
    assert topic.publish("anything") == 2

"""The stock Danube client against a real `frazil serve`: everything that it can do."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import struct
import textwrap
from collections import Counter, defaultdict
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from danube.consumer import SubType
from danube.dispatch_strategy import DispatchStrategy
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs
from danube.schema import SchemaType
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

import frazil
from parts.danube import TOPIC, Server, connect, producer, serving, subscriber

pytestmark = pytest.mark.timeout(180)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("danube")
    with serving(folder, redelivery_delay_ms=50, ack_timeout_ms=60_000) as found:
        yield found
        assert "Traceback" not in found.log()


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"/default/{request.node.name.split('[')[0][5:85]}"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def test_a_message_arrives_as_it_was_sent(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic, "maker")
        async with subscriber(client, topic=topic) as receiver:
            number = await sender.send_with_key(b"\x00tea", {"a": "1", "ü": "ß"}, "anna")
            (message,) = await receiver.take(1)
        assert message.payload == b"\x00tea"
        assert dict(message.attributes) == {"a": "1", "ü": "ß"}
        assert message.routing_key == "anna"
        assert (message.producer_name, message.subscription_name, message.request_id) == ("maker", "s", number)
        assert (message.msg_id.topic_name, message.msg_id.topic_offset) == (topic, 0)
        assert message.publish_time > 1_700_000_000_000
        assert not message.HasField("schema_id")

    run(work())


def test_an_exclusive_consumer_gets_all_in_order(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, topic=topic) as receiver:
            for number in range(100):
                await sender.send(str(number).encode())
            assert await receiver.texts(100) == [str(number) for number in range(100)]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                async with subscriber(client, "other", topic=topic):
                    pass
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        await sender.send(b"later")
        async with subscriber(client, topic=topic) as receiver:
            assert await receiver.texts(1) == ["later"], "it goes on where it was"

    run(work())


def test_a_shared_subscription_has_equal_shares(tmp_path: Path, topic: str) -> None:
    async def work(server: Server) -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with contextlib.AsyncExitStack() as stack:
            receivers = [
                await stack.enter_async_context(subscriber(client, f"c{number}", SubType.SHARED, topic=topic))
                for number in range(3)
            ]
            for number in range(90):
                await sender.send(str(number).encode())
            shares = await asyncio.gather(*(one.texts(30) for one in receivers))
        assert sorted(int(text) for share in shares for text in share) == list(range(90))

    # A consumer with its share of the window in flight is passed over: this window holds all messages.
    with serving(tmp_path, max_unacked_messages=300) as server:
        run(work(server))


def test_failover_goes_to_the_next_with_what_was_not_acknowledged(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, "second", SubType.FAILOVER, topic=topic, subscription="f"):
            pass  # it is known, and away
        async with (
            subscriber(client, "first", SubType.FAILOVER, topic=topic) as first,
            subscriber(client, "second", SubType.FAILOVER, topic=topic) as second,
        ):
            for number in range(6):
                await sender.send(str(number).encode())
            assert await first.texts(3) == ["0", "1", "2"]
            await first.take(3, ack=False)
            assert second.waiting() == 0
            await first.consumer.close()
            assert await second.texts(3) == ["3", "4", "5"]

    run(work())


def test_keys_stay_in_order_and_with_one_consumer(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        seen: dict[str, list[str]] = defaultdict(list)
        owners: dict[str, set[str]] = defaultdict(set)
        count = 120

        async def listen(name: str) -> None:
            async with subscriber(client, name, SubType.KEY_SHARED, topic=topic) as receiver:
                await ready.wait()
                while True:
                    (message,) = await receiver.take(1)
                    seen[message.routing_key].append(message.payload.decode())
                    owners[message.routing_key].add(name)
                    if sum(map(len, seen.values())) == count:
                        done.set()

        ready = asyncio.Barrier(4)
        done = asyncio.Event()
        tasks = [asyncio.create_task(listen(f"c{number}")) for number in range(3)]
        await ready.wait()
        await asyncio.sleep(0.5)  # streams open after subscribing, without a sign that they have
        for number in range(count):
            await sender.send_with_key(str(number).encode(), None, f"k{number % 12}")
        await asyncio.wait_for(done.wait(), 60)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert seen == {f"k{key}": [str(number) for number in range(key, count, 12)] for key in range(12)}
        assert {len(names) for names in owners.values()} == {1}
        assert len(set.union(*owners.values())) > 1

    run(work())


def test_filters_choose_keys(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, kind=SubType.KEY_SHARED, topic=topic, filters=("eu-*",)) as receiver:
            for key in ("us-1", "eu-1", "us-2", "eu-2"):
                await sender.send_with_key(key.encode(), None, key)
            assert await receiver.texts(2) == ["eu-1", "eu-2"]

    run(work())


def test_partitions_share_a_topic(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic, partitions=3)
        async with subscriber(client, topic=topic) as receiver:
            for number in range(9):
                await sender.send(str(number).encode())
            found = await receiver.take(9)
        assert sorted(int(one.payload) for one in found) == list(range(9))
        assert Counter(one.msg_id.topic_name for one in found) == {f"{topic}-part-{part}": 3 for part in range(3)}
        with pytest.raises(Exception, match="with partitions"):
            await producer(client, topic, "plain")

    run(work())


def test_what_is_refused_comes_again(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, topic=topic) as receiver:
            await sender.send(b"a")
            (message,) = await receiver.take(1, ack=False)
            await receiver.consumer.nack(message, delay_ms=10, reason="not now")
            assert await receiver.texts(1) == ["a"]

    run(work())


def test_a_topic_without_a_log(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic, reliable=False)
        async with subscriber(client, topic=topic) as receiver:
            while not receiver.waiting():
                await sender.send(b"now")  # what nobody hears is gone
                await asyncio.sleep(0.01)
            assert set(await receiver.texts(receiver.waiting())) == {"now"}
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await producer(client, topic, "q", reliable=True)
        assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION

    run(work())


def test_every_subscription_gets_everything_at_its_own_pace(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with contextlib.AsyncExitStack() as stack:
            idle = await stack.enter_async_context(subscriber(client, topic=topic, subscription="idle"))
            others = [
                await stack.enter_async_context(subscriber(client, topic=topic, subscription=f"s{number}"))
                for number in range(10)
            ]
            for number in range(50):
                await sender.send(str(number).encode())
            texts = await asyncio.gather(*(one.texts(50) for one in others))
            assert texts == [[str(number) for number in range(50)]] * 10
            assert idle.waiting() == 10, "the window of one that never answers"

    run(work())


def test_bad_input_gets_a_clean_status(server: Server) -> None:
    async def work() -> None:
        async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
            produce, consume = stubs.ProducerServiceStub(channel), stubs.ConsumerServiceStub(channel)
            discover, check = stubs.DiscoveryStub(channel), stubs.HealthCheckStub(channel)
            lookup, made, sub = pb.TopicLookupRequest, pb.ProducerRequest, pb.ConsumerRequest
            message = pb.StreamMessage(msg_id=pb.MsgID(producer_id=7), payload=b"x")
            ack = pb.AckRequest(msg_id=pb.MsgID(topic_name="/default/none"), subscription_name="s")
            bad: list[tuple[Callable[[Any], Any], Any, str]] = [
                (discover.TopicLookup, lookup(topic="orders"), "INVALID_ARGUMENT"),
                (discover.TopicLookup, lookup(topic="/default/none"), "NOT_FOUND"),
                (produce.CreateProducer, made(topic_name="/a/b/c", producer_name="p"), "INVALID_ARGUMENT"),
                (produce.CreateProducer, made(topic_name="/a/b", producer_name=""), "INVALID_ARGUMENT"),
                (produce.CreateProducer, made(topic_name="/a/b", producer_name="p" * 999), "INVALID_ARGUMENT"),
                (produce.SendMessage, message, "UNAVAILABLE"),
                (consume.Subscribe, sub(topic_name="/default/none", consumer_name="c", subscription="s"), "NOT_FOUND"),
                (consume.Subscribe, sub(topic_name="none", consumer_name="c", subscription="s"), "INVALID_ARGUMENT"),
                (consume.Ack, ack, "NOT_FOUND"),
            ]
            for call, request, wanted in bad:
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await call(request)
                assert refused.value.code().name == wanted, refused.value.details()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await anext(aiter(consume.ReceiveMessages(pb.ReceiveRequest(consumer_id=7))))
            assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
            assert (await check.HealthCheck(pb.HealthCheckRequest(id=7))).status == pb.HealthCheckResponse.CLOSE
            assert list((await discover.TopicPartitions(lookup(topic="/default/none"))).partitions) == []
            for method in ("ProducerService/SendMessage", "ConsumerService/ReceiveMessages"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await channel.unary_unary(f"/danube.{method}")(b"\xff\xff\xff")
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(work())


PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, body: bytes, length: int | None = None) -> bytes:
    """A frame of HTTP/2, whose length may lie."""
    return (
        struct.pack(">I", len(body) if length is None else length)[1:] + struct.pack(">BBI", kind, flags, stream) + body
    )


def hostile_bytes() -> list[bytes]:
    chance = random.Random(7)
    opened = PREFACE + frame(4, 0, 0, b"")
    return [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        *(chance.randbytes(2_000) for _ in range(20)),
        *(opened + chance.randbytes(2_000) for _ in range(20)),
        opened + frame(1, 4, 1, chance.randbytes(500)),  # headers that no table can unpack
        opened + frame(0, 1, 1, bytes(100)),  # data of a stream that was never opened
        opened + frame(9, 4, 1, bytes(100)) + frame(3, 0, 0, b""),
        opened + frame(0, 0, 1, b"", length=2**24 - 1),
        opened + frame(8, 0, 0, b"\xff\xff\xff\xff") * 100,
        opened + b"".join(frame(6, 0, 0, bytes(8)) for _ in range(1_000)),
    ]


def test_garbage_ends_its_own_connection_alone(server: Server, topic: str) -> None:
    """What is no HTTP/2, and what only begins like it; then fields and headers that nobody should send."""

    async def work() -> None:
        sender = await producer(await connect(server), topic)
        for garbage in hostile_bytes():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(garbage)
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 30)
            writer.close()
        await sender.send(b"still there")
        async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
            make = channel.unary_unary("/danube.ProducerService/CreateProducer")
            for raw in (b"\x1a\x02\xff\xfe", b"\x12\x03a\xc3\x28" + b"\x1a\x04/a/b"):
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await make(raw)
                assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, "no UTF-8"
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await make(b"", metadata=[("x-huge", "x" * 200_000)])
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            known = await stubs.ProducerServiceStub(channel).CreateProducer(
                pb.ProducerRequest(topic_name=topic, producer_name="p", dispatch_strategy=pb.Reliable)
            )
            send = stubs.ProducerServiceStub(channel).SendMessage
            many = {f"name-{number:06}": "v" * 100 for number in range(95_000)}
            message = pb.StreamMessage(msg_id=pb.MsgID(producer_id=known.producer_id), payload=b"x", attributes=many)
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await send(message)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert str(10 * 1024 * 1024) in (refused.value.details() or "")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await channel.unary_unary("/danube.ProducerService/Nothing")(b"")
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
        await sender.send(b"and still")

    run(work())
    assert "Traceback" not in server.log()


def test_a_message_beyond_the_limit_is_refused_with_the_limit(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await sender.send(bytes(10 * 1024 * 1024 + 1))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert str(10 * 1024 * 1024) in (refused.value.details() or "")

    run(work())


def test_the_program_of_the_guide_runs(server: Server) -> None:
    page = Path(__file__).parents[2] / "docs" / "guides" / "broker.md"
    program = page.read_text(encoding="utf-8").split("```text\n")[1].split("```")[0]
    program = program.replace("http://127.0.0.1:6650", server.url)
    names: dict[str, Any] = {}
    exec("async def guide():\n" + textwrap.indent(program + "return message.payload", "    "), names)

    async def work() -> None:
        assert await names["guide"]() == b"tea"

    run(work())


JSON_ORDER = {"type": "object", "properties": {"tea": {"type": "string"}}, "required": ["tea"]}


def test_schemas_are_registered_compared_and_enforced(server: Server, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        schemas = client.schema()
        first = (
            await schemas.register_schema("orders")
            .with_type(SchemaType.JSON_SCHEMA)
            .with_schema_data(json.dumps(JSON_ORDER).encode())
            .execute()
        )
        found = await schemas.get_latest_schema("orders")
        assert (found.schema_id, found.version, found.subject) == (first, 1, "orders")
        assert await schemas.list_versions("orders") == [1]
        changed = {**JSON_ORDER, "properties": {"tea": {"type": "number"}}}
        fits, why = await schemas.check_compatibility("orders", json.dumps(changed).encode(), SchemaType.JSON_SCHEMA)
        assert not fits
        assert "tea" in " ".join(why)
        sender = client.new_producer().with_topic(topic).with_name("p").with_schema_subject("orders")
        sender = sender.with_dispatch_strategy(DispatchStrategy.RELIABLE).build()
        await sender.create()
        await schemas.configure_topic_schema(topic, "orders", "enforce", True)
        async with subscriber(client, topic=topic) as receiver:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await sender.send(b'{"tea": 7}')
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            await sender.send(b'{"tea": "green"}')
            (message,) = await receiver.take(1)
        assert (message.payload, message.schema_id, message.schema_version) == (b'{"tea": "green"}', first, 1)
        unknown = client.new_producer().with_topic(topic).with_name("q").with_schema_subject("nothing")
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await unknown.with_dispatch_strategy(DispatchStrategy.RELIABLE).build().create()
        assert refused.value.code() is grpc.StatusCode.NOT_FOUND

    run(work())


def test_health_and_reflection(server: Server) -> None:
    async def work() -> None:
        async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
            healthy = await health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
            assert healthy.status == health_pb2.HealthCheckResponse.SERVING
            reflect = reflection_pb2_grpc.ServerReflectionStub(channel)
            call = reflect.ServerReflectionInfo(iter([reflection_pb2.ServerReflectionRequest(list_services="")]))
            answer = await anext(aiter(call))
            names = {one.name for one in answer.list_services_response.service}
            assert {"danube.ProducerService", "danube.ConsumerService", "danube.Discovery"} <= names

    run(work())


def test_a_clean_stop_ends_streams_and_stores_cursors(tmp_path: Path) -> None:
    async def publish(server: Server) -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client) as receiver:
            for number in range(20):
                await sender.send(str(number).encode())
            assert len(await receiver.take(15)) == 15
            assert server.stop() == 0

    async def go_on(server: Server) -> None:
        async with subscriber(await connect(server)) as receiver:
            assert await receiver.texts(5) == [str(number) for number in range(15, 20)]

    with serving(tmp_path) as server:
        run(publish(server))
        server.start()
        run(go_on(server))
        server.stop()
    with frazil.open(tmp_path / "data") as storage:
        stored = list(storage.topic(TOPIC, create=False).read())
    assert [message.payload for message in stored] == [str(number).encode() for number in range(20)]
    assert {message.producer for message in stored} == {"p"}


def test_one_stream_too_many_is_refused_and_named(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client) as receiver:
            await sender.send(b"tea")
            assert await receiver.texts(1) == ["tea"], "its stream is open"
            async with grpc.aio.insecure_channel(server.url.removeprefix("http://")) as channel:
                calls = stubs.ConsumerServiceStub(channel)
                wanted = pb.ConsumerRequest(topic_name=TOPIC, subscription="other", consumer_name="c")
                made = await calls.Subscribe(wanted)
                stream = calls.ReceiveMessages(pb.ReceiveRequest(consumer_id=made.consumer_id))
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await anext(aiter(stream))
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert "broker.streams_max" in (refused.value.details() or "")
        async with subscriber(client, "later", subscription="third") as receiver:
            await sender.send(b"milk")
            assert await receiver.texts(1) == ["milk"], "the place is free again"

    with serving(tmp_path, streams_max=1) as server:
        run(work(server))

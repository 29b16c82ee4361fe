"""The quotas of topics and stored bytes at the gRPC doors: every call that creates a topic or publishes rows."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.core.errors import QuotaExceeded
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.doors.danube.proto import DanubeApi_pb2 as pb
from frazil.doors.danube_admin import danube_admin_pb2 as admin_pb
from frazil.doors.flight import flight_pb2 as flight
from parts.secured import SecuredDoors, key_id, secured

ROLES = ("producer", "*"), ("operator", "*")
ORDERS = "/shop/orders"
STORED_MAX = 50_000


def run(folder: Path, work: Callable[[SecuredDoors], Awaitable[None]], **quota: int) -> None:
    async def inside() -> None:
        async with secured(folder, security={"enabled": True, "quota": quota}) as doors:
            await asyncio.wait_for(work(doors), 60)

    asyncio.run(inside())


async def call(doors: SecuredDoors, door: str, name: str, request: Any, key: str) -> bytes:
    service, method = next((to, one) for to, methods in doors.tables()[door] for one in methods if one.name == name)
    answer = doors.call(door, service, method, [request.SerializeToString()], key)
    found: bytes = await (answer.read() if hasattr(answer, "__aiter__") else answer)
    return found


async def refused(answer: Awaitable[Any], quota: str) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await answer
    codes = grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE  # the second for clients of Flight
    assert error.value.code() in codes
    assert f"quota {quota} = " in (error.value.details() or "")


def producer(topic: str, reliable: Any = pb.Reliable) -> pb.ProducerRequest:
    return pb.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=reliable)


def action(kind: str, **body: Any) -> flight.Action:
    return flight.Action(type=kind, body=json.dumps(body).encode())


def creations(topic: str) -> list[tuple[str, str, Any]]:
    """Every call of a gRPC door that creates a topic, or two partitions."""
    partitioned = admin_pb.PartitionedTopicRequest(base_name=topic, partitions=2, dispatch_strategy=admin_pb.Reliable)
    return [
        ("danube", "CreateProducer", producer(topic)),
        ("danube", "CreateProducer", producer(topic, pb.NonReliable)),
        ("admin", "CreateTopic", admin_pb.NewTopicRequest(name=topic, dispatch_strategy=admin_pb.Reliable)),
        ("admin", "CreateTopic", admin_pb.NewTopicRequest(name=topic, dispatch_strategy=admin_pb.NonReliable)),
        ("admin", "CreatePartitionedTopic", partitioned),
        ("flight", "DoAction", action("create_topic", topic=topic)),
        ("flight", "DoAction", action("topic", topic=topic, create=True)),
        ("flight", "DoAction", action("create_partitions", topic=topic, partitions=2)),
    ]


def test_every_call_that_creates_a_topic_is_limited(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        for number, (door, name, request) in enumerate(creations("/shop/made")):
            key = await doors.key(*ROLES)
            first = [producer(f"/shop/{number}-{one}") for one in range(2)]
            await call(doors, "danube", "CreateProducer", first[0], key)
            await call(doors, door, name, request, key)
            topics = doors.node.topics(LOCAL)
            made = await topics.run(topics.family, TopicName.parse("/shop/made"))
            assert len(made) == (2 if "artition" in str(request) else 1), request
            await topics.run(topics.delete, TopicName.parse("/shop/made"), force=True)
            await call(doors, "danube", "CreateProducer", first[1], key)  # the deleted one is free again
            await call(doors, "danube", "CreateProducer", producer(f"/shop/{number}-last"), key)
            there = await topics.run(topics.names)
            await refused(call(doors, door, name, request, key), "topics")
            assert await topics.run(topics.names) == there
            await call(doors, "danube", "CreateProducer", first[0], key)  # what exists is used

    run(tmp_path / "data", work, topics=3)


def test_every_way_to_publish_is_limited_by_the_stored_bytes(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        key, other = await doors.key(*ROLES), await doors.key(*ROLES)
        topic, rows = "/shop/full", [b"x" * 1_000] * 100
        made = await call(doors, "danube", "CreateProducer", producer(topic), key)
        number = pb.ProducerResponse.FromString(made).producer_id
        message = pb.StreamMessage(msg_id=pb.MsgID(producer_id=number), payload=b"an order")
        await call(doors, "danube", "SendMessage", message, key)
        await asyncio.to_thread(plain, doors.flight.address, key, rows)
        end = doors.node.storage.topic(topic, create=False).stats().end
        assert end == 101
        await refused(call(doors, "danube", "SendMessage", message, key), "stored_bytes")
        for one in (key, other):
            with pytest.raises(pa.ArrowException, match="stored_bytes"):
                await asyncio.to_thread(plain, doors.flight.address, one, [b"row"])
            with pytest.raises(QuotaExceeded, match="stored_bytes"):
                await asyncio.to_thread(numbered, doors.flight.address, one, topic)
            with pytest.raises(QuotaExceeded, match="stored_bytes"):
                await doors.node.publish(Principal(f"key:{key_id(one)}"), topic, [b"row"])
        assert doors.node.storage.topic(topic, create=False).stats().end == end
        await call(doors, "danube", "CreateProducer", producer("/shop/others"), other)
        await asyncio.to_thread(numbered, doors.flight.address, key, "/shop/others")  # its creator has room

    run(tmp_path / "data", work, stored_bytes=STORED_MAX)


def failure_policy(**fields: Any) -> admin_pb.SetSubscriptionFailurePolicyRequest:
    policy = admin_pb.SubscriptionFailurePolicy(
        max_redelivery_count=3, ack_timeout_ms=9_000, base_redelivery_delay_ms=1, max_redelivery_delay_ms=9, **fields
    )
    return admin_pb.SetSubscriptionFailurePolicyRequest(topic=ORDERS, subscription="s", failure_policy=policy)


def test_the_topic_of_a_failure_policy_needs_rights_and_is_limited(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        node, name = doors.node, "SetSubscriptionFailurePolicy"
        await node.create_topic(LOCAL, TopicName.parse(ORDERS))
        await node.subscribe(LOCAL, ORDERS, "s", Kind.SHARED, "c")
        consumer = await doors.key(("consumer", "*"))
        publisher = await doors.key(("consumer", "*"), ("producer", "*"))
        key = await doors.key(*ROLES)
        named = failure_policy(dead_letter_topic="/shop/lost", poison_policy=admin_pb.Block)
        for request, letters in ((named, "/shop/lost"), (failure_policy(), "/shop/orders-dead-letter")):
            for one, action in ((consumer, "produce"), (publisher, "create")):
                with pytest.raises(grpc.aio.AioRpcError, match=f"may not {action} the topic '{letters}'") as error:
                    await call(doors, "admin", name, request, one)
                assert error.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert node.storage.topics() == [ORDERS]
        await call(doors, "admin", name, named, key)
        await refused(call(doors, "admin", name, failure_policy(), key), "topics")
        assert node.storage.topics() == ["/shop/lost", ORDERS]
        assert node.admin(LOCAL).policy(TopicName.parse(ORDERS), "s").dead_letter_topic == "/shop/lost"
        window = admin_pb.SetSubscriptionDispatchConfigRequest(
            topic=ORDERS, subscription="s", dispatch_config=admin_pb.SubscriptionDispatchConfig(max_unacked_messages=3)
        )
        await call(doors, "admin", "SetSubscriptionDispatchConfig", window, consumer)  # its letters stay as they are

    run(tmp_path / "data", work, topics=1)


def plain(address: str, key: str, rows: list[bytes]) -> None:
    """Publish a batch as every Flight client does."""
    options = pa.flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {key}".encode())], timeout=20)
    schema = pa.schema([("_payload", pa.binary())])
    with pa.flight.connect(address) as client:
        writer, answers = client.do_put(pa.flight.FlightDescriptor.for_path("shop", "full"), schema, options)
        with writer:
            writer.write_batch(pa.record_batch([pa.array(rows, pa.binary())], schema=schema))
            writer.done_writing()
            assert json.loads(answers.read().to_pybytes())["rows"] == len(rows)


def numbered(address: str, key: str, topic: str) -> None:
    """Publish with Frazil's own client."""
    with frazil.connect(address, token=key, give_up_ms=1_000) as storage:
        storage.topic(topic, create=False).publish("row")


def test_a_topic_that_a_producer_creates_is_in_the_audit_log(tmp_path: Path) -> None:
    keys: list[str] = []

    async def work(doors: SecuredDoors) -> None:
        keys.append(await doors.key(*ROLES))
        for _ in range(2):  # the second time it exists
            await call(doors, "danube", "CreateProducer", producer("/shop/danube"), keys[0])
            await call(doors, "flight", "DoAction", action("topic", topic="/shop/flight", create=True), keys[0])

    run(tmp_path / "data", work)
    lines = [json.loads(line) for line in (tmp_path / "data" / "audit.log").read_text().splitlines()]
    made = [one for one in lines if one["action"] == "create" and one["principal"] == f"key:{key_id(keys[0])}"]
    assert [(one["resource"], one["allowed"]) for one in made] == [
        ("topic /shop/danube", True),
        ("topic /shop/flight", True),
    ]
    assert made[0]["from"]

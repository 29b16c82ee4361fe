"""What callers of gRPC doors keep for longer than a call: streams, producers and consumers with their ids and names."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.core.put_notes import piece_notes
from frazil.core.settings import MIB
from frazil.doors.calls import Method
from frazil.doors.danube.proto import DanubeApi_pb2 as pb
from frazil.doors.danube.proto import SchemaRegistry_pb2 as schemas
from frazil.doors.flight import flight_pb2 as flight
from frazil.doors.flight.get.sql import QUERIES_OF_CALLER_MAX
from frazil.doors.flight.topics import own_producer
from frazil.doors.flight.wire import schema_data
from frazil.log.write.publishing import GIVEN, message_rows
from parts.secured import SecuredDoors, key_id, secured

TOPIC, OTHER = "/shop/orders", "/shop/absent"
ENDED_SECONDS_MAX = 2.0
"""A change is known within a second, and an idle stream looks twice a second."""
SERVICE = "arrow.flight.protocol.FlightService"
ANSWERS: dict[str, Any] = {
    "CreateProducer": pb.ProducerResponse,
    "SendMessage": pb.MessageResponse,
    "Subscribe": pb.ConsumerResponse,
    "HealthCheck": pb.HealthCheckResponse,
    "TopicPartitions": pb.TopicPartitionsResponse,
}


def run(folder: Path, work: Callable[[SecuredDoors], Awaitable[None]], **sections: Any) -> None:
    async def all_of_it() -> None:
        async with secured(folder, **sections) as doors:
            if TOPIC not in doors.node.storage.topics():
                await doors.node.create_topic(LOCAL, TopicName.parse(TOPIC))
            await work(doors)

    asyncio.run(asyncio.wait_for(all_of_it(), 60))


def found(doors: SecuredDoors, door: str, name: str) -> tuple[str, Method]:
    return next((service, one) for service, methods in doors.tables()[door] for one in methods if one.name == name)


async def ask(doors: SecuredDoors, name: str, request: Any, key: str | None) -> Any:
    service, method = found(doors, "danube", name)
    return ANSWERS[name].FromString(await doors.call("danube", service, method, [request.SerializeToString()], key))


async def status(call: Awaitable[Any]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value.code(), refused.value.details() or ""


def producer(name: str = "p", topic: str = TOPIC) -> pb.ProducerRequest:
    return pb.ProducerRequest(producer_name=name, topic_name=topic, dispatch_strategy=pb.Reliable)


def sent(number: int) -> pb.StreamMessage:
    return pb.StreamMessage(msg_id=pb.MsgID(producer_id=number), payload=b"an order")


def subscribed(consumer: str = "c", subscription: str = "s") -> pb.ConsumerRequest:
    return pb.ConsumerRequest(topic_name=TOPIC, consumer_name=consumer, subscription=subscription)


# --- ids and names


def test_a_producer_belongs_to_the_caller_who_has_created_it(tmp_path: Path) -> None:
    kept: list[Any] = []

    async def work(doors: SecuredDoors) -> None:
        mine, other = await doors.key(("producer", "/shop/*")), await doors.key(("producer", "/shop/*"))
        number = (await ask(doors, "CreateProducer", producer(), mine)).producer_id
        await ask(doors, "SendMessage", sent(number), mine)
        assert (await ask(doors, "CreateProducer", producer(), mine)).producer_id == number
        code, text = await status(ask(doors, "SendMessage", sent(number), other))
        assert (code, text.replace(str(number), "1")) == await status(ask(doors, "SendMessage", sent(1), other))
        theirs = (await ask(doors, "CreateProducer", producer(), other)).producer_id  # the same name: its own producer
        assert theirs != number
        kept.extend((mine, other, number, theirs))

    async def after_a_restart(doors: SecuredDoors) -> None:
        mine, other, number, theirs = kept
        await ask(doors, "SendMessage", sent(number), mine)
        await ask(doors, "SendMessage", sent(theirs), other)
        assert (await status(ask(doors, "SendMessage", sent(number), other)))[0] is grpc.StatusCode.UNAVAILABLE
        assert (await ask(doors, "CreateProducer", producer(), other)).producer_id == theirs

    run(tmp_path / "data", work)
    run(tmp_path / "data", after_a_restart)


def test_a_producer_that_was_created_without_security_is_open_to_whoever_may_publish(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        known = await doors.node.broker(LOCAL).create_producer(TOPIC, "old", reliable=True)
        one, two = await doors.key(("producer", "/shop/*")), await doors.key(("producer", "/shop/*"))
        reader = await doors.key(("reader", "/shop/*"))
        for key in (one, two):
            assert (await ask(doors, "CreateProducer", producer("old"), key)).producer_id == known.id
            await ask(doors, "SendMessage", sent(known.id), key)
        assert (await status(ask(doors, "SendMessage", sent(known.id), reader)))[0] is grpc.StatusCode.PERMISSION_DENIED

    run(tmp_path / "data", work)


def test_a_health_check_is_answered_for_all_and_tells_only_of_the_callers_own(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        roles = ("producer", "/shop/*"), ("consumer", "/shop/*")
        mine, other = await doors.key(*roles), await doors.key(*roles)
        number = (await ask(doors, "CreateProducer", producer(), mine)).producer_id
        consumer = (await ask(doors, "Subscribe", subscribed(), mine)).consumer_id
        for kind, one in ((pb.HealthCheckRequest.Producer, number), (pb.HealthCheckRequest.Consumer, consumer)):
            request = pb.HealthCheckRequest(client=kind, id=one)
            answers = [(await ask(doors, "HealthCheck", request, key)).status for key in (mine, other, None, "wrong")]
            assert answers == [pb.HealthCheckResponse.OK, *[pb.HealthCheckResponse.CLOSE] * 3]

    run(tmp_path / "data", work)


def test_the_name_of_a_consumer_is_its_callers_until_they_may_consume_no_more(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        mine, other = await doors.key(("consumer", "/shop/*")), await doors.key(("consumer", "/shop/*"))
        number = (await ask(doors, "Subscribe", subscribed(), mine)).consumer_id
        code, text = await status(ask(doors, "Subscribe", subscribed(), other))
        assert code is grpc.StatusCode.PERMISSION_DENIED
        assert "another principal" in text
        await doors.revoke(mine)
        assert (await ask(doors, "Subscribe", subscribed(), other)).consumer_id == number  # with its position

    run(tmp_path / "data", work)


def test_the_consumer_of_a_caller_whose_rights_are_in_no_binding_is_not_taken(tmp_path: Path) -> None:
    """Roles in a token are known only when it is sent, and this host's own programs have no binding."""

    async def work(doors: SecuredDoors) -> None:
        other = await doors.key(("consumer", "/shop/*"))
        for owner in (LOCAL, Principal("jwt:carol", ("consumer",))):
            number = await doors.node.subscribe(owner, TOPIC, owner.name, Kind.EXCLUSIVE, "c")
            code, text = await status(ask(doors, "Subscribe", subscribed(subscription=owner.name), other))
            assert code is grpc.StatusCode.PERMISSION_DENIED, text
            assert await doors.node.subscribe(owner, TOPIC, owner.name, Kind.EXCLUSIVE, "c") == number

    secret = tmp_path / "secret"
    secret.write_text("s" * 32)
    issuer = {"issuer": "https://idp.example", "audience": "frazil", "algorithms": ["HS256"], "roles_claim": "roles"}
    run(tmp_path / "data", work, security={"enabled": True, "jwt": [{**issuer, "secret_file": secret}]})


def test_producers_of_flight_have_their_names_for_themselves(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        keys = [await doors.key(("producer", "/shop/*")) for _ in range(2)]
        opening = json.dumps({"topic": TOPIC, "producer": "p"}).encode()
        for key in (*keys, keys[0]):
            stream = put(doors, flight.FlightDescriptor(type=2, cmd=opening), key)
            first = json.loads(flight.PutResult.FromString(await stream.read()).app_metadata)
            assert first["next_sequence"] == 0
            stream.cancel()
        log, node = doors.node.storage.topic(TOPIC, create=False).log, doors.node
        names = [own_producer(node, Principal(f"key:{key_id(key)}"), "p") for key in keys]
        assert log.producer_state("p") is None
        states = [log.producer_state(name) for name in names]
        assert [None if one is None else one.epoch for one in states] == [1, 0]  # taken twice, taken once

    run(tmp_path / "data", work)


# --- no word of what is hidden


def test_an_error_does_not_tell_whether_a_hidden_topic_exists(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        bare = await doors.key(("admin", "/other/*"))

        async def refusals(topic: str) -> list[str]:
            lookup, tickets = pb.TopicLookupRequest(topic=topic), json.dumps({"read": {"topic": topic}}).encode()
            about = json.dumps({"topic": topic, "create": True}).encode()
            asked = [
                ("danube", "TopicLookup", lookup),
                ("danube", "TopicPartitions", lookup),
                ("danube", "CreateProducer", producer(topic=topic)),
                ("flight", "GetFlightInfo", flight.FlightDescriptor(type=1, path=[topic])),
                ("flight", "DoGet", flight.Ticket(ticket=tickets)),
                ("flight", "DoAction", flight.Action(type="topic", body=about)),
                ("admin", "DescribeTopic", flight.Action(type=topic)),  # field 1, text: like its own request
            ]
            answers = []
            for door, name, request in asked:
                service, method = found(doors, door, name)
                call = doors.call(door, service, method, [request.SerializeToString()], bare)
                code, text = await status(call.read() if hasattr(call, "__aiter__") else call)
                assert code is grpc.StatusCode.PERMISSION_DENIED, name
                answers.append(text.replace(topic, "/a/topic"))
            return answers

        assert await refusals(TOPIC) == await refusals(OTHER)
        assert doors.node.storage.topics() == [TOPIC]

    run(tmp_path / "data", work)


def test_a_topic_does_not_tell_of_a_hidden_schema(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        await asyncio.to_thread(doors.node.registry(LOCAL).register, "hidden", "string", b"string")
        await asyncio.to_thread(doors.node.schemas(LOCAL).bind, TOPIC, "hidden")
        rule = {"actions": ["describe"], "kind": "topic", "pattern": "*"}
        await asyncio.to_thread(doors.access.roles.put, "looker", [rule])
        service, method = found(doors, "danube", "GetTopicSchemaConfig")
        asked = schemas.GetTopicSchemaConfigRequest(topic_name=TOPIC).SerializeToString()
        for roles, subject in ((("looker",), ""), (("looker", "reader"), "hidden")):
            key = await doors.key(*((role, "*") for role in roles))
            answer = await doors.call("danube", service, method, [asked], key)
            told = schemas.GetTopicSchemaConfigResponse.FromString(answer)
            assert (told.schema_subject, told.schema_id > 0) == (subject, subject != "")

    run(tmp_path / "data", work)


def test_a_producer_creates_a_topic_only_with_the_right_to_create(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        only, creator = await doors.key(("producer", "/shop/*")), await doors.key(("producer", "*"), ("operator", "*"))
        for reliable in (pb.Reliable, pb.NonReliable):
            request = pb.ProducerRequest(producer_name="p", topic_name=OTHER, dispatch_strategy=reliable)
            code, text = await status(ask(doors, "CreateProducer", request, only))
            assert code is grpc.StatusCode.PERMISSION_DENIED
            assert "create" in text
        service, method = found(doors, "flight", "DoAction")
        wanted = flight.Action(type="topic", body=json.dumps({"topic": OTHER, "create": True}).encode())
        call = doors.call("flight", service, method, [wanted.SerializeToString()], only)
        assert (await status(call.read()))[0] is grpc.StatusCode.PERMISSION_DENIED
        assert doors.node.storage.topics() == [TOPIC]
        assert await ask(doors, "CreateProducer", producer(topic=OTHER), creator)
        assert await ask(doors, "CreateProducer", producer(topic=OTHER), only)

    run(tmp_path / "data", work)


# --- streams end with the right


def put(doors: SecuredDoors, kind: flight.FlightDescriptor, key: str, name: str = "DoPut") -> Any:
    """Open a stream that sends its schema, and nothing more until it is cancelled."""
    first = flight.FlightData(flight_descriptor=kind).SerializeToString()
    first += schema_data(pa.schema([("_payload", pa.binary())]))

    async def messages() -> AsyncIterator[bytes]:
        yield first
        await asyncio.Event().wait()

    channel: Any = doors.channels["flight"]
    metadata = (("authorization", f"Bearer {key}"),)
    return channel.stream_stream(f"/{SERVICE}/{name}")(messages(), metadata=metadata)


async def receive(doors: SecuredDoors, key: str) -> Any:
    number = (await ask(doors, "Subscribe", subscribed(), key)).consumer_id
    service, method = found(doors, "danube", "ReceiveMessages")
    return doors.call("danube", service, method, [pb.ReceiveRequest(consumer_id=number).SerializeToString()], key)


async def follow(doors: SecuredDoors, key: str) -> Any:
    service, method = found(doors, "flight", "DoGet")
    ticket = json.dumps({"read": {"topic": TOPIC, "follow": True}}).encode()
    return doors.call("flight", service, method, [flight.Ticket(ticket=ticket).SerializeToString()], key)


async def put_plain(doors: SecuredDoors, key: str) -> Any:
    return put(doors, flight.FlightDescriptor(type=1, path=["shop", "orders"]), key)


async def put_numbered(doors: SecuredDoors, key: str) -> Any:
    opening = json.dumps({"topic": TOPIC, "producer": "p"}).encode()
    return put(doors, flight.FlightDescriptor(type=2, cmd=opening), key)


async def exchange(doors: SecuredDoors, key: str) -> Any:
    asked = {"topic": TOPIC, "subscription": "s", "kind": "shared", "consumer": "c"}
    return put(doors, flight.FlightDescriptor(type=2, cmd=json.dumps(asked).encode()), key, "DoExchange")


@pytest.mark.parametrize("how", ["revoked", "unbound"])
@pytest.mark.parametrize("begin", [receive, follow, put_plain, put_numbered, exchange])
def test_an_idle_stream_ends_within_seconds_of_its_right(
    tmp_path: Path, begin: Callable[[SecuredDoors, str], Awaitable[Any]], how: str
) -> None:
    async def work(doors: SecuredDoors) -> None:
        role = "producer" if begin in (put_plain, put_numbered) else "consumer"
        key = await doors.key((role, "/shop/*"))
        stream = await begin(doors, key)

        async def drained() -> None:
            async for _ in stream:
                pass

        reading = asyncio.ensure_future(drained())
        await asyncio.sleep(1.2)
        assert not reading.done(), reading
        if how == "revoked":
            await doors.revoke(key)
        else:
            principal = f"key:{key_id(key)}"
            await asyncio.to_thread(doors.access.bindings.remove, principal, role, "/shop/*")
        began = time.monotonic()
        code, _ = await asyncio.wait_for(status(reading), 10)
        assert time.monotonic() - began < ENDED_SECONDS_MAX
        wanted = grpc.StatusCode.UNAUTHENTICATED if how == "revoked" else grpc.StatusCode.PERMISSION_DENIED
        assert code is wanted

    run(tmp_path / "data", work)


SLOW_QUERY = """
import sys, time, pyarrow as pa
rows = pa.record_batch([pa.array([1])], names=["a"])
with pa.ipc.new_stream(sys.stdout.buffer, rows.schema) as stream:
    while True:
        stream.write_batch(rows)
        sys.stdout.buffer.flush()
        time.sleep(float(sys.argv[1]))
"""


async def query(doors: SecuredDoors, key: str, pause_s: float) -> Any:
    """Begin a query whose process sends a row after each pause, for ever."""
    doors.node._command = lambda *_: [sys.executable, "-c", SLOW_QUERY, str(pause_s)]
    service, method = found(doors, "flight", "DoGet")
    ticket = flight.Ticket(ticket=json.dumps({"sql": {"query": "select 1"}}).encode())
    return doors.call("flight", service, method, [ticket.SerializeToString()], key)


@pytest.mark.parametrize("pause_s", [0.05, 60])
@pytest.mark.parametrize("how", ["revoked", "unbound"])
def test_a_query_ends_within_seconds_of_its_right(tmp_path: Path, how: str, pause_s: float) -> None:
    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("reader", "/shop/*"))
        batches = aiter(await query(doors, key, pause_s))
        await anext(batches)

        async def drained() -> None:
            async for _ in batches:
                pass

        reading = asyncio.ensure_future(drained())
        await asyncio.sleep(0.7)
        assert not reading.done(), reading
        if how == "revoked":
            await doors.revoke(key)
        else:
            principal = f"key:{key_id(key)}"
            await asyncio.to_thread(doors.access.bindings.remove, principal, "reader", "/shop/*")
        began = time.monotonic()
        code, text = await asyncio.wait_for(status(reading), 10)
        assert time.monotonic() - began < ENDED_SECONDS_MAX
        assert code is (grpc.StatusCode.UNAUTHENTICATED if how == "revoked" else grpc.StatusCode.UNAVAILABLE), text

    run(tmp_path / "data", work)


def test_a_caller_without_any_role_starts_no_query(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        stream = await query(doors, await doors.key(), 0.05)
        assert (await status(stream.read()))[0] is grpc.StatusCode.PERMISSION_DENIED

    run(tmp_path / "data", work)


def test_one_caller_leaves_queries_to_the_others(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        greedy, other = await doors.key(("reader", "*")), await doors.key(("reader", "*"))
        held = [await query(doors, greedy, 60) for _ in range(QUERIES_OF_CALLER_MAX)]
        for one in held:
            assert await one.read()
        refused = await query(doors, greedy, 60)
        code, text = await status(refused.read())
        assert "quota concurrent queries" in text, code
        assert await (await query(doors, other, 60)).read()
        held[0].cancel()
        async with asyncio.timeout(10):  # each try takes a round trip
            while not await again(doors, greedy):
                pass

    async def again(doors: SecuredDoors, key: str) -> bool:
        try:
            return bool(await (await query(doors, key, 60)).read())
        except grpc.aio.AioRpcError:
            return False

    run(tmp_path / "data", work)


def test_a_publish_is_in_the_audit_log_if_reads_are(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("producer", "*"), ("operator", "*"))
        number = (await ask(doors, "CreateProducer", producer(), key)).producer_id
        assert await ask(doors, "SendMessage", pb.StreamMessage(msg_id=pb.MsgID(producer_id=number)), key)

    run(tmp_path / "data", work, security={"enabled": True, "audit": {"reads": True}})
    lines = [json.loads(line) for line in (tmp_path / "data" / "audit.log").read_text().splitlines()]
    produced = [line for line in lines if line["action"] == "produce" and line["allowed"]]
    assert len(produced) == 2, "to make the producer, and to send"
    assert all(line["from"] for line in produced)


def test_the_quota_counts_all_that_a_message_stores(tmp_path: Path) -> None:
    async def work(doors: SecuredDoors) -> None:
        key = await doors.key(("producer", "*"))
        number = (await ask(doors, "CreateProducer", producer(), key)).producer_id
        large = pb.StreamMessage(msg_id=pb.MsgID(producer_id=number), attributes={"a": "x" * 5_000})
        assert await ask(doors, "SendMessage", large, key)
        assert (await status(ask(doors, "SendMessage", large, key)))[0] is grpc.StatusCode.RESOURCE_EXHAUSTED

    run(tmp_path / "data", work, security={"enabled": True, "quota": {"bytes_per_second": 1_000}})


# --- stock clients


def test_pyarrow_raises_its_own_errors(tmp_path: Path) -> None:
    def look(address: str, key: str | None, error: type[Exception]) -> None:
        headers = [] if key is None else [(b"authorization", b"Bearer " + key.encode())]
        options = pa.flight.FlightCallOptions(headers=headers)
        path = pa.flight.FlightDescriptor.for_path("shop", "orders")
        ticket = pa.flight.Ticket(json.dumps({"read": {"topic": TOPIC}}).encode())
        with pa.flight.connect(address) as client:

            def put_nothing() -> None:
                client.do_put(path, pa.schema([("payload", pa.binary())]), options)[0].close()

            for call in (
                lambda: client.do_get(ticket, options).read_all(),
                lambda: client.get_flight_info(path, options),
                lambda: list(client.do_action(pa.flight.Action("logs", b""), options)),
                put_nothing,
            ):
                with pytest.raises(error):
                    call()

    async def work(doors: SecuredDoors) -> None:
        bare = await doors.key()
        await asyncio.to_thread(look, doors.flight.address, None, pa.flight.FlightUnauthenticatedError)
        await asyncio.to_thread(look, doors.flight.address, "wrong", pa.flight.FlightUnauthenticatedError)
        await asyncio.to_thread(look, doors.flight.address, bare, pa.flight.FlightUnauthorizedError)

    run(tmp_path / "data", work)


def test_batches_that_one_caller_never_completes_leave_room_for_others(tmp_path: Path) -> None:
    """It sends the first piece of each, and then no more."""

    async def work(doors: SecuredDoors) -> None:
        mallory, alice = await doors.key(("producer", "*")), await doors.key(("producer", "*"))
        batch = message_rows(frazil.WalSettings(), [bytes(MIB - 1_000)] * 2, 1_000_000)[0]
        first_piece = flight.FlightData(app_metadata=next(iter(piece_notes(0, memoryview(batch.serialize())))))
        stalled = []
        for number in range(5):
            descriptor = flight.FlightDescriptor(
                type=2, cmd=json.dumps({"topic": TOPIC, "producer": f"p{number}"}).encode()
            )
            opening = flight.FlightData(flight_descriptor=descriptor).SerializeToString() + schema_data(GIVEN)
            call = doors.channels["flight"].stream_stream(f"/{SERVICE}/DoPut")(
                metadata=[("authorization", f"Bearer {mallory}")]
            )
            await call.write(opening)
            assert b"epoch" in await call.read()
            await call.write(first_piece.SerializeToString())
            stalled.append(call)

        def publish() -> None:
            with frazil.connect(doors.flight.address, token=alice) as client:
                client.topic(TOPIC).publish_many(batch)

        async with asyncio.timeout(10):
            await asyncio.to_thread(publish)
        for call in stalled:
            call.cancel()

    run(tmp_path, work, flight={"port": 0, "buffer_bytes_max": 5 * MIB, "batch_bytes_max": 2 * MIB + 100_000})

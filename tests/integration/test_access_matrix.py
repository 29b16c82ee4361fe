"""Every call of every gRPC door with every kind of credentials: only the right ones pass; others change nothing.

The calls are read from the tables of the doors. One without a sample request here fails the test.

gRPC's own health service and reflection are in no table: they are public, and know nothing of topics. `HealthCheck` and
`Authenticate` of Danube are public too; `test_access_streams.py` has the first, with what streams and ids may do.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pyarrow as pa
import pytest

import frazil.doors
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.doors.admission import IDENTIFIED, PUBLIC
from frazil.doors.calls import Method
from frazil.doors.danube.door import DanubeDoor
from frazil.doors.danube.proto import DanubeApi_pb2 as danube
from frazil.doors.danube.proto import SchemaRegistry_pb2 as schemas
from frazil.doors.danube_admin import AdminDoor
from frazil.doors.danube_admin import danube_admin_pb2 as admin
from frazil.doors.flight import flight_pb2 as flight
from frazil.doors.flight.actions import identified
from frazil.doors.flight.door import FlightDoor
from frazil.doors.flight.wire import schema_data
from frazil.doors.otlp.grpc_door import GrpcDoor
from frazil.node.movers.status_codec import packed
from frazil.telemetry.requests import PROFILES_SERVICE, SERVICES
from parts.secured import SecuredDoors, secured
from parts.telemetry import span, spans, trace

TOPIC, SUBSCRIPTION, SUBJECT, NAMESPACE = "/shop/orders", "billing", "orders-value", "shop"
NEW = "/shop/new"
SCHEMA = b'{"type": "object"}'
SECRETS = (b"shop", b"orders", b"billing")
"""What somebody without rights must not see in any answer."""
PASSES_SECONDS = 1.0
"""A stream that has not failed by then has passed the gate."""
REFUSED_SECONDS_MAX = 15.0
"""A refusal may take long on a busy machine. What has no answer until then was let in."""
REFUSED = (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED)
BY_ID = {
    "danube.ProducerService/SendMessage": grpc.StatusCode.UNAVAILABLE,
    "danube.ConsumerService/ReceiveMessages": grpc.StatusCode.UNAVAILABLE,
    "danube_schema.SchemaRegistry/GetSchema": grpc.StatusCode.NOT_FOUND,
}
"""Calls by an id: somebody else's is refused like one that does not exist."""
DESCRIBE_SCHEMA = {
    f"danube_schema.SchemaRegistry/{name}"
    for name in ("GetSchema", "GetLatestSchema", "ListVersions", "CheckCompatibility")
}


class World(NamedTuple):
    """What there is: the ids are of the right caller."""

    producer: int
    consumer: int
    schema: int
    log_id: str


Sample = Callable[[World], list[bytes]]


def of(message: Any) -> Sample:
    data = message.SerializeToString()
    return lambda _: [data]


def by(make: Callable[[World], Any]) -> Sample:
    return lambda world: [make(world).SerializeToString()]


def answer(kind: Any) -> Sample:
    named = danube.MsgID(topic_name=TOPIC, topic_offset=0)
    return of(kind(msg_id=named, subscription_name=SUBSCRIPTION))


_LOOKUP = of(danube.TopicLookupRequest(topic=TOPIC))
_NAMED = of(admin.TopicRequest(name=TOPIC))
_SUBSCRIBED = {"topic": TOPIC, "subscription": SUBSCRIPTION}
_POLICY = admin.SubscriptionFailurePolicy(max_redelivery_count=7, ack_timeout_ms=9_000, base_redelivery_delay_ms=1)

SAMPLES: dict[str, Sample] = {
    "danube.Discovery/TopicLookup": _LOOKUP,
    "danube.Discovery/TopicPartitions": _LOOKUP,
    "danube.ProducerService/CreateProducer": of(
        danube.ProducerRequest(producer_name="another", topic_name=TOPIC, dispatch_strategy=danube.Reliable)
    ),
    "danube.ProducerService/SendMessage": by(
        lambda world: danube.StreamMessage(msg_id=danube.MsgID(producer_id=world.producer), payload=b"an order")
    ),
    "danube.ConsumerService/Subscribe": of(
        danube.ConsumerRequest(topic_name=TOPIC, consumer_name="d", subscription="another", subscription_type="Shared")
    ),
    "danube.ConsumerService/ReceiveMessages": by(lambda world: danube.ReceiveRequest(consumer_id=world.consumer)),
    "danube.ConsumerService/Ack": answer(danube.AckRequest),
    "danube.ConsumerService/Nack": answer(danube.NackRequest),
    "danube_schema.SchemaRegistry/RegisterSchema": of(
        schemas.RegisterSchemaRequest(
            subject=SUBJECT, schema_type="json_schema", schema_definition=b'{"type": "array"}'
        )
    ),
    "danube_schema.SchemaRegistry/GetSchema": by(lambda world: schemas.GetSchemaRequest(schema_id=world.schema)),
    "danube_schema.SchemaRegistry/GetLatestSchema": of(schemas.GetLatestSchemaRequest(subject=SUBJECT)),
    "danube_schema.SchemaRegistry/ListVersions": of(schemas.ListVersionsRequest(subject=SUBJECT)),
    "danube_schema.SchemaRegistry/CheckCompatibility": of(
        schemas.CheckCompatibilityRequest(
            subject=SUBJECT, schema_type="json_schema", new_schema_definition=SCHEMA, compatibility_mode="none"
        )
    ),
    "danube_schema.SchemaRegistry/DeleteSchemaVersion": of(
        schemas.DeleteSchemaVersionRequest(subject=SUBJECT, version=1)
    ),
    "danube_schema.SchemaRegistry/SetCompatibilityMode": of(
        schemas.SetCompatibilityModeRequest(subject=SUBJECT, compatibility_mode="full")
    ),
    "danube_schema.SchemaRegistry/ConfigureTopicSchema": of(
        schemas.ConfigureTopicSchemaRequest(topic_name=TOPIC, schema_subject=SUBJECT, validation_policy="warn")
    ),
    "danube_schema.SchemaRegistry/UpdateTopicValidationPolicy": of(
        schemas.UpdateTopicValidationPolicyRequest(topic_name=TOPIC, validation_policy="warn")
    ),
    "danube_schema.SchemaRegistry/GetTopicSchemaConfig": of(schemas.GetTopicSchemaConfigRequest(topic_name=TOPIC)),
    "danube_admin.BrokerAdmin/ListBrokers": of(admin.Empty()),
    "danube_admin.BrokerAdmin/GetLeaderBroker": of(admin.Empty()),
    "danube_admin.BrokerAdmin/ListNamespaces": of(admin.Empty()),
    "danube_admin.BrokerAdmin/UnloadBroker": of(admin.UnloadBrokerRequest(broker_id="1")),
    "danube_admin.BrokerAdmin/ActivateBroker": of(admin.ActivateBrokerRequest(broker_id="1")),
    "danube_admin.BrokerAdmin/GetClusterBalance": of(admin.ClusterBalanceRequest()),
    "danube_admin.BrokerAdmin/TriggerRebalance": of(admin.RebalanceRequest()),
    "danube_admin.ClusterAdmin/ClusterStatus": of(admin.Empty()),
    "danube_admin.ClusterAdmin/AddNode": of(admin.AddNodeRequest(addr="host:1")),
    "danube_admin.ClusterAdmin/PromoteNode": of(admin.PromoteNodeRequest(node_id=2)),
    "danube_admin.ClusterAdmin/RemoveNode": of(admin.RemoveNodeRequest(node_id=2)),
    "danube_admin.NamespaceAdmin/GetNamespaceTopics": of(admin.NamespaceRequest(name=NAMESPACE)),
    "danube_admin.NamespaceAdmin/GetNamespacePolicies": of(admin.NamespaceRequest(name=NAMESPACE)),
    "danube_admin.NamespaceAdmin/CreateNamespace": of(admin.NamespaceRequest(name="another")),
    "danube_admin.NamespaceAdmin/DeleteNamespace": of(admin.NamespaceRequest(name="spare")),
    "danube_admin.TopicAdmin/ListNamespaceTopics": of(admin.NamespaceRequest(name=NAMESPACE)),
    "danube_admin.TopicAdmin/ListBrokerTopics": of(admin.BrokerRequest(broker_id="1")),
    "danube_admin.TopicAdmin/CreateTopic": of(admin.NewTopicRequest(name=NEW, dispatch_strategy=admin.Reliable)),
    "danube_admin.TopicAdmin/CreatePartitionedTopic": of(
        admin.PartitionedTopicRequest(base_name="/shop/parts", partitions=2, dispatch_strategy=admin.Reliable)
    ),
    "danube_admin.TopicAdmin/DeleteTopic": _NAMED,
    "danube_admin.TopicAdmin/UnloadTopic": _NAMED,
    "danube_admin.TopicAdmin/ListSubscriptions": _NAMED,
    "danube_admin.TopicAdmin/Unsubscribe": of(admin.SubscriptionRequest(**_SUBSCRIBED)),
    "danube_admin.TopicAdmin/SetSubscriptionFailurePolicy": of(
        admin.SetSubscriptionFailurePolicyRequest(**_SUBSCRIBED, failure_policy=_POLICY)
    ),
    "danube_admin.TopicAdmin/GetSubscriptionFailurePolicy": of(
        admin.GetSubscriptionFailurePolicyRequest(**_SUBSCRIBED)
    ),
    "danube_admin.TopicAdmin/DescribeTopic": of(admin.DescribeTopicRequest(name=TOPIC)),
    "danube_admin.TopicAdmin/SetSubscriptionDispatchConfig": of(
        admin.SetSubscriptionDispatchConfigRequest(
            **_SUBSCRIBED, dispatch_config=admin.SubscriptionDispatchConfig(max_unacked_messages=3)
        )
    ),
    "danube_admin.TopicAdmin/GetSubscriptionDispatchConfig": of(
        admin.GetSubscriptionDispatchConfigRequest(**_SUBSCRIBED)
    ),
    "danube_admin.SecurityAdmin/CreateRole": of(admin.CreateRoleRequest()),
    "danube_admin.SecurityAdmin/GetRole": of(admin.GetRoleRequest(name="admin")),
    "danube_admin.SecurityAdmin/ListRoles": of(admin.Empty()),
    "danube_admin.SecurityAdmin/DeleteRole": of(admin.DeleteRoleRequest(name="x")),
    "danube_admin.SecurityAdmin/CreateBinding": of(admin.CreateBindingRequest()),
    "danube_admin.SecurityAdmin/GetBinding": of(admin.GetBindingRequest()),
    "danube_admin.SecurityAdmin/ListBindings": of(admin.ListBindingsRequest()),
    "danube_admin.SecurityAdmin/ListAllBindings": of(admin.Empty()),
    "danube_admin.SecurityAdmin/DeleteBinding": of(admin.DeleteBindingRequest()),
}

# --- Flight: a call may have several forms, each with its own sample


def descriptor(**fields: Any) -> bytes:
    """The first message of a stream: what it is for, and the schema of its rows."""
    kind = flight.FlightDescriptor(**fields)
    head = flight.FlightData(flight_descriptor=kind).SerializeToString()
    return bytes(head) + schema_data(pa.schema([("_payload", pa.binary())]))


def ticket(make: Callable[[World], Any]) -> Sample:
    return by(lambda world: flight.Ticket(ticket=json.dumps(make(world)).encode()))


def action(name: str, body: Any = None) -> Sample:
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    return of(flight.Action(type=name, body=data))


_MOVER = {"id": "m", "host": "h", "pid": 1}
_REPORT = {**_MOVER, "state": "running", "rows": 0, "commits": 0, "error": None, "topics": {}}
_SERVICE = "arrow.flight.protocol.FlightService"
_PATH = of(flight.FlightDescriptor(type=1, path=["shop", "orders"]))
_COMMAND = of(flight.FlightDescriptor(type=2, cmd=json.dumps({"read": {"topic": TOPIC}}).encode()))

SAMPLES |= {
    f"{_SERVICE}/ListFlights": of(flight.Criteria()),
    f"{_SERVICE}/GetFlightInfo": _PATH,
    f"{_SERVICE}/GetFlightInfo of a command": _COMMAND,
    f"{_SERVICE}/GetSchema": _PATH,
    f"{_SERVICE}/GetSchema of a command": _COMMAND,
    f"{_SERVICE}/ListActions": of(flight.Empty()),
    f"{_SERVICE}/DoGet": ticket(lambda _: {"read": {"topic": TOPIC}}),
    f"{_SERVICE}/DoGet of a stock client": ticket(lambda _: {"read": {"topic": TOPIC, "notes": False}}),
    f"{_SERVICE}/DoGet of a range": ticket(
        lambda world: {"topic": TOPIC, "log_id": world.log_id, "start": 0, "end": 1}
    ),
    f"{_SERVICE}/DoPut": lambda _: [descriptor(type=1, path=["shop", "orders"])],
    f"{_SERVICE}/DoPut of numbered batches": lambda _: [
        descriptor(type=2, cmd=json.dumps({"topic": TOPIC, "producer": "p"}).encode())
    ],
    f"{_SERVICE}/DoExchange": lambda _: [
        descriptor(
            type=2,
            cmd=json.dumps({"topic": TOPIC, "subscription": "third", "kind": "shared", "consumer": "e"}).encode(),
        )
    ],
    **{
        f"{_SERVICE}/DoAction {name}": action(name, body)
        for name, body in {
            "logs": None,
            "topics": None,
            "brokers": None,
            "topic": {"topic": TOPIC},
            "create_topic": {"topic": "/shop/newer"},
            "create_partitions": {"topic": "/shop/more", "partitions": 2},
            "delete_topic": {"topic": TOPIC, "force": True},
            "change_schema": {"topic": TOPIC},
            "set_retention": {"topic": TOPIC, "retention": None},
            "topic_stats": {"topic": TOPIC},
            "topic_logs": {"topic": TOPIC, "files": True},
            "topic_sync": {"topic": TOPIC},
            "flush": {"topic": TOPIC, "timeout_ms": 0, "offset": 0},
            "stats": {"topic": TOPIC},
            "producer": {"topic": TOPIC, "log_id": "x", "producer": "p"},
            "lead": {**_MOVER, "lease_ms": 5_000},
            "give_up": {"id": "m"},
            "tell": packed(_REPORT),
            "tenants": None,
        }.items()
    },
    f"{_SERVICE}/DoAction topic that is created": action("topic", {"topic": "/shop/newest", "create": True}),
}
SPAN = spans("shop", {"trace": trace(1), "id": span(1)})
SAMPLES |= {f"{name}/Export": lambda _: [SPAN] for name in (*SERVICES.values(), PROFILES_SERVICE)}
SQL = f"{_SERVICE}/DoGet of a query"
"""Every caller with a role may ask; what a query sees is tested with queries."""
ANYBODY = {SQL: ticket(lambda _: {"sql": {"query": "select 1"}})}
PUBLIC_CALLS = {"danube.HealthCheck/HealthCheck", "danube.AuthService/Authenticate"}


class Call(NamedTuple):
    door: str
    service: str
    method: Method
    label: str
    sample: Sample
    for_everybody: bool
    """Whether every identified caller passes. Lists are filtered then."""


def test_every_folder_of_a_door_is_in_a_matrix() -> None:
    """That of the admin door is in `test_http_access.py`, that of OTLP/HTTP in `test_otlp_senders.py`.

    A new door has to be in `SecuredDoors`, or in another matrix.
    """
    folders = {path.parent.name for path in Path(frazil.doors.__path__[0]).glob("*/__init__.py")}
    own = {kind.__module__.split(".")[2] for kind in (DanubeDoor, AdminDoor, FlightDoor, GrpcDoor)}
    assert folders - {"http", "metrics"} == own, "a door is in no matrix"


def calls_of(doors: SecuredDoors) -> Iterator[Call]:
    """All calls of the tables with all their samples; fails for a call without one."""
    known = SAMPLES | ANYBODY
    for door, tables in doors.tables().items():
        for service, methods in tables:
            for method in methods:
                name = f"{service}/{method.name}"
                if name in PUBLIC_CALLS:
                    assert method.needs is PUBLIC, name
                    continue
                assert method.needs is not PUBLIC, f"{name} is public"
                forms = [f"{name} {one}" for one in doors.flight.actions] if method.name == "DoAction" else [name]
                assert not set(forms) - known.keys(), f"no sample request for {set(forms) - known.keys()}"
                for label in sorted(one for one in known if one == name or one.startswith(f"{name} ")):
                    open_to_all = method.needs is IDENTIFIED or label in ANYBODY
                    if method.name == "DoAction":
                        found = doors.flight.actions.get(label.split()[1])
                        open_to_all = found is not None and found.needs is identified
                    yield Call(door, service, method, label, known[label], open_to_all)


class Outcome(NamedTuple):
    code: grpc.StatusCode
    details: str
    answers: bytes


async def outcome(
    doors: SecuredDoors, call: Call, world: World, key: str | None, seconds_max: float = PASSES_SECONDS
) -> Outcome:
    """The status of a call, and what it answered; a stream that stays open is OK."""
    begun = doors.call(call.door, call.service, call.method, call.sample(world), key)
    answers: list[bytes] = []

    async def read() -> None:
        if hasattr(begun, "__aiter__"):
            async for one in begun:
                answers.append(one)
        else:
            answers.append(await begun)

    try:
        await asyncio.wait_for(read(), seconds_max)
    except TimeoutError:
        begun.cancel()
    except grpc.aio.AioRpcError as error:
        return Outcome(error.code(), error.details() or "", b"".join(answers))
    return Outcome(grpc.StatusCode.OK, "", b"".join(answers))


async def state(doors: SecuredDoors) -> dict[str, Any]:
    """Everything that a call could change: all records of the metadata store, all logs, and who is connected."""
    broker = doors.node.broker(LOCAL)
    stored = {one.key: one.value for one in await asyncio.to_thread(broker._records._meta.list, "/")}
    logs = {name: doors.node.storage.topic(name, create=False).log for name in doors.node.storage.topics()}
    return {
        "records": stored,
        "logs": {name: (log.log_id, log.first_offset, log.durable_end, str(log.schema)) for name, log in logs.items()},
        "retention": {name: doors.node.storage.record(name).retention for name in logs},
        "producers": {str(name): sorted(topic.producers) for name, topic in broker.topics.items()},
        "cursors": [(one.topic, one.subscription, one.in_flight) for one in doors.node.admin(LOCAL).subscriptions(
            TopicName.parse(TOPIC))],
        "numbered": {name: log.producer_state("p") for name, log in logs.items()},
        "mover": doors.node.movers(LOCAL).status.read(),
    }  # fmt: skip


async def prepared(doors: SecuredDoors, key: str) -> World:
    """Topics, rows, a producer and a consumer of the right caller, a subject, and an empty namespace."""
    node = doors.node
    await node.create_topic(LOCAL, TopicName.parse(TOPIC))
    await node.publish(LOCAL, TOPIC, [b"first", b"second"])
    made: dict[str, Any] = {}
    for name, service, request, answered in (
        ("CreateProducer", "danube.ProducerService",
         danube.ProducerRequest(producer_name="p", topic_name=TOPIC, dispatch_strategy=danube.Reliable),
         danube.ProducerResponse),
        ("Subscribe", "danube.ConsumerService",
         danube.ConsumerRequest(
             topic_name=TOPIC, consumer_name="c", subscription=SUBSCRIPTION, subscription_type="Shared"),
         danube.ConsumerResponse),
    ):  # fmt: skip
        method = next(
            one for table in doors.danube.tables() if table.name == service for one in table.methods if one.name == name
        )
        made[name] = answered.FromString(
            await doors.call("danube", service, method, [request.SerializeToString()], key)
        )
    registered = await asyncio.to_thread(node.registry(LOCAL).register, SUBJECT, "json_schema", SCHEMA)
    await asyncio.to_thread(node.namespaces(LOCAL).create, "spare")
    log_id = node.storage.topic(TOPIC, create=False).log.log_id
    return World(made["CreateProducer"].producer_id, made["Subscribe"].consumer_id, registered.schema_id, log_id)


async def whole_matrix(folder: Path) -> None:
    async with secured(folder) as doors:
        right = await doors.key(("admin", "*"))
        world = await prepared(doors, right)
        expired, revoked = await doors.key(("admin", "*"), lifetime_ms=1), await doors.key(("admin", "*"))
        calls = list(calls_of(doors))
        lookup = next(call for call in calls if call.label == "danube.Discovery/TopicLookup")
        assert (await outcome(doors, lookup, world, revoked)).code is grpc.StatusCode.OK
        await doors.revoke(revoked)
        bare, elsewhere = await doors.key(), await doors.key(("admin", "/other/*"))
        wrong = right[:-1] + ("a" if right[-1] != "a" else "b")
        before = await state(doors)
        problems = []
        for call in calls:
            for kind, key in (("none", None), ("wrong", wrong), ("expired", expired), ("revoked", revoked)):
                found = await outcome(doors, call, world, key, REFUSED_SECONDS_MAX)
                if found.code is not grpc.StatusCode.UNAUTHENTICATED or found.answers:
                    problems.append(f"{call.label} with {kind} credentials: {found}")
            for kind, key in (("no rights", bare), ("rights elsewhere", elsewhere)):
                found = await outcome(doors, call, world, key, REFUSED_SECONDS_MAX)
                if not is_refused(call, found, has_a_role=key is elsewhere):
                    problems.append(f"{call.label} with {kind}: {found}")
        assert not problems, "\n".join(problems)
        assert await state(doors) == before
        for call in sorted(calls, key=lambda call: "elete" in call.label or "Unsubscribe" in call.label):
            found = await outcome(doors, call, world, right)
            assert found.code not in REFUSED, (call.label, found)


def is_refused(call: Call, found: Outcome, *, has_a_role: bool) -> bool:
    """Whether somebody without rights got nothing. To describe a schema is not narrowed by a scope."""
    if call.for_everybody and (has_a_role or call.label not in ANYBODY):
        return found.code not in REFUSED and not any(one in found.answers for one in SECRETS)
    if has_a_role and call.label in DESCRIBE_SCHEMA:
        return found.code is grpc.StatusCode.OK
    expected = BY_ID.get(call.label, grpc.StatusCode.PERMISSION_DENIED)
    return found.code is expected and not found.answers


@pytest.mark.timeout(300)
def test_only_the_right_caller_passes_and_the_others_change_nothing(tmp_path: Path) -> None:
    asyncio.run(whole_matrix(tmp_path / "data"))

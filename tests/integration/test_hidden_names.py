"""Every call of a gRPC door that creates something: it does not name what is in the way to a caller that may not
describe that. HTTP: `tests/unit/doors/test_hidden_conflicts.py`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.doors.danube.proto import DanubeApi_pb2 as pb
from frazil.doors.danube.proto import SchemaRegistry_pb2 as schemas
from frazil.doors.danube_admin import danube_admin_pb2 as admin
from frazil.doors.flight import flight_pb2 as flight
from parts.secured import SecuredDoors, key_id, secured

HIDDEN, TWIN, SUBJECT = "/shop/salaries", "/shop/Salaries", "payroll"
SCHEMA, ANOTHER = (json.dumps({"type": "object", "required": [name]}).encode() for name in ("salary", "bonus"))

Asked = tuple[str, str, Any]


def rule(effect: str, actions: str, kind: str, pattern: str = "*") -> dict[str, Any]:
    return {"effect": effect, "actions": actions.split(), "kind": kind, "pattern": pattern}


USES = [
    rule("allow", "produce", "topic"),
    rule("allow", "describe", "topic", TWIN),
    rule("allow", "describe", "schema", "other"),
]
ROLES = {
    "denied": USES,
    "maker": [*USES, rule("allow", "create delete", "*"), rule("deny", "describe", "topic", HIDDEN)],
}


def action(kind: str, **body: Any) -> Asked:
    return "flight", "DoAction", flight.Action(type=kind, body=json.dumps(body).encode())


def producer(topic: str, dispatch: Any = pb.Reliable, **more: Any) -> Asked:
    asked = pb.ProducerRequest(producer_name="p", topic_name=topic, dispatch_strategy=dispatch, **more)
    return "danube", "CreateProducer", asked


def creations() -> list[Asked]:
    """Each is refused: of one topic that exists, and that the caller may not describe."""
    own = schemas.RegisterSchemaRequest(subject=SUBJECT, schema_type="json_schema", schema_definition=ANOTHER)
    asked: list[Asked] = [
        producer(TWIN),
        producer(TWIN, pb.NonReliable),
        producer(f"{TWIN}-part-0"),
        action("topic", topic=TWIN, create=True),
        ("danube", "RegisterSchema", own),
        ("admin", "CreateNamespace", admin.NamespaceRequest(name="shop")),
        ("admin", "DeleteNamespace", admin.NamespaceRequest(name="shop")),
    ]
    for topic in (HIDDEN, TWIN, f"{HIDDEN}-part-0"):
        for dispatch in (admin.Reliable, admin.NonReliable):
            asked.append(("admin", "CreateTopic", admin.NewTopicRequest(name=topic, dispatch_strategy=dispatch)))
        asked.append(action("create_topic", topic=topic))
    for topic in (HIDDEN, TWIN):
        two = admin.PartitionedTopicRequest(base_name=topic, partitions=2, dispatch_strategy=admin.Reliable)
        of_other = admin.NewTopicRequest(name=topic, dispatch_strategy=admin.Reliable, schema_subject="other")
        asked += [("admin", "CreatePartitionedTopic", two), ("admin", "CreateTopic", of_other)]
        asked.append(action("create_partitions", topic=topic, partitions=2))
    return asked


async def refusal(doors: SecuredDoors, asked: Asked, key: str) -> str:
    door, name, request = asked
    service, method = next((to, one) for to, methods in doors.tables()[door] for one in methods if one.name == name)
    answer = doors.call(door, service, method, [request.SerializeToString()], key)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await (answer.read() if hasattr(answer, "__aiter__") else answer)
    assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED, (asked, refused.value)
    return (refused.value.details() or "").replace(key_id(key), "ID")


@pytest.mark.timeout(120)
def test_a_refused_creation_tells_nothing_of_what_is_hidden(tmp_path: Path) -> None:
    async def work() -> None:
        async with secured(tmp_path / "data") as doors:
            node = doors.node
            await node.create_topic(LOCAL, TopicName.parse(HIDDEN))
            registry = node.registry(LOCAL)
            for subject in (SUBJECT, "other"):
                await asyncio.to_thread(registry.register, subject, "json_schema", SCHEMA)
            await asyncio.to_thread(node.schemas(LOCAL).configure, HIDDEN, SUBJECT, "warn", False)
            for role, rules in ROLES.items():
                await asyncio.to_thread(doors.access.roles.put, role, rules)
            maker, denied = await doors.key(("maker", "*")), await doors.key(("denied", "*"))
            for asked in creations():
                answer = await refusal(doors, asked, maker)
                assert answer == await refusal(doors, asked, denied), asked
            assert node.storage.topics() == [HIDDEN]
            assert [one.version for one in registry.versions(SUBJECT)] == [1]

    asyncio.run(asyncio.wait_for(work(), 90))

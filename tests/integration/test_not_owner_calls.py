"""Every call that names a topic of another broker is refused with its owner, or is one that any broker can answer.

The calls are read from the tables of the gRPC doors and from the routes of the admin API: a new one is found here.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import httpx
import pytest
from fastapi.routing import iter_route_contexts
from test_access_matrix import SAMPLES, TOPIC, World, calls_of, outcome, prepared

from frazil.doors.http.door import make_app
from parts.cluster import Cluster, FakeOwnership
from parts.secured import secured

ANYWHERE = {
    "danube.Discovery/TopicLookup": "it answers with the owner",
    "danube.Discovery/TopicPartitions": "names of all brokers",
    "danube_schema.SchemaRegistry/ConfigureTopicSchema": "in the metadata store",
    "danube_schema.SchemaRegistry/UpdateTopicValidationPolicy": "in the metadata store",
    "danube_schema.SchemaRegistry/GetTopicSchemaConfig": "in the metadata store",
    "danube_admin.TopicAdmin/UnloadTopic": "any broker can ask for a move",
    "arrow.flight.protocol.FlightService/DoAction topic_logs": "it says who owns the logs",
}
ROUTES_ANYWHERE = {"/owner": "GET", "/move": "POST", "/partitions": "GET", "/schema": "any"}
BY_ID = ("SendMessage", "ReceiveMessages")


def names_topic(label: str) -> bool:
    """Whether the sample of a call names the topic."""
    return any(TOPIC.encode() in part or b"\x06orders" in part for part in SAMPLES[label](World(1, 1, 1, "x")))


async def all_calls(folder: Path) -> None:
    async with secured(folder) as doors:
        key = await doors.key(("admin", "*"))
        world = await prepared(doors, key)
        cluster = Cluster(doors.node.storage)
        cluster.addresses = {"a": {"flight": "grpc://127.0.0.1:1"}, "b": {}}
        cluster.give(TOPIC, "a")
        doors.node._ownership = FakeOwnership(cluster, "b")
        problems, checked = [], 0
        for call in calls_of(doors):
            if call.label not in SAMPLES or not (names_topic(call.label) or call.method.name in BY_ID):
                continue
            if call.label in ANYWHERE or "create" in call.label:
                continue
            found = await outcome(doors, call, world, key)
            checked += 1
            if found.code is not grpc.StatusCode.UNAVAILABLE or "owned by the broker a" not in found.details:
                problems.append(f"{call.label}: {found}")
        assert not problems, "\n".join(problems)
        assert checked >= 25
        await all_routes(doors.node, key)


async def all_routes(node: object, key: str) -> None:
    app = make_app(node)  # type: ignore[arg-type]
    routes = [one for one in iter_route_contexts(app.routes) if one.path.startswith("/v1/topics/{namespace}/{topic}")]
    transport = httpx.ASGITransport(app)
    headers = {"authorization": f"Bearer {key}"}
    bodies = {"/reset": {"to": "latest"}, "/replay": {"which": "all"}}
    checked = 0
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", headers=headers) as client:
        for route in routes:
            if any(route.path.endswith(end) for end in ROUTES_ANYWHERE):
                continue
            url = route.path.replace("/{namespace}/{topic}", TOPIC).replace("{subscription}", "billing")
            body = next((body for end, body in bodies.items() if url.endswith(end)), {})
            for method in route.methods:
                answer = await client.request(method, url, json=body if method in ("PUT", "POST") else None)
                checked += 1
                assert (answer.status_code, answer.json()["error"]) == (503, "not_owner"), (method, url)  # no address
                assert answer.json()["broker_id"] == "a"
    assert checked >= 15


@pytest.mark.timeout(240)
def test_every_call_for_a_topic_of_another_broker_is_led_to_its_owner(tmp_path: Path) -> None:
    asyncio.run(all_calls(tmp_path / "data"))

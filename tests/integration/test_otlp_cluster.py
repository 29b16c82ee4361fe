"""OTLP in a cluster: a request for a dataset of another broker is stored by its owner, once."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.doors.otlp.counts import OtlpCounts
from frazil.doors.otlp.door import OtlpDoor
from frazil.node.access.local_token import read_local_token
from parts.cluster_nodes import ClusterNode, cluster_nodes
from parts.etcd import etcd_server
from parts.otlp_doors import OtlpDoors, Reply
from parts.telemetry import span, spans, trace

pytestmark = pytest.mark.timeout(180)

TOPIC = TopicName.parse("/default.default/traces")
OK = Reply(grpc.StatusCode.OK)


def request(number: int) -> bytes:
    return spans("shop", {"trace": trace(number), "id": span(number)})


@contextlib.asynccontextmanager
async def door_of(member: ClusterNode) -> AsyncIterator[OtlpDoors]:
    counts = OtlpCounts()
    door = OtlpDoor(member.node, counts)
    addresses = await door.start()
    member.node.addresses |= addresses
    doors = OtlpDoors(member.node, door, counts, addresses)
    try:
        yield doors
    finally:
        await doors.channel.close()
        await doors.http.aclose()
        await door.stop()


async def knows_owner(at: ClusterNode, topic: TopicName = TOPIC) -> None:
    """Wait until a broker knows who owns the topic, and where its door is."""
    while True:
        owner = at.ownership.owner_of(topic)
        if owner is not None and "otlp_grpc_advertised" in owner.addresses:
            return
        await asyncio.sleep(0.02)


async def refused_by_owner(at_a: OtlpDoors) -> None:
    """The owner counts requests against the tenant's quota, and its refusal comes with the time to try again."""
    while (reply := await at_a.call(request(5))).code is grpc.StatusCode.OK:  # noqa: ASYNC110 - another broker
        await asyncio.sleep(0.02)
    assert reply.code is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "bytes_per_second = 1" in reply.message
    assert reply.retry_ms is not None
    answer = await at_a.post(request(5))
    assert answer.status_code == 429
    assert int(answer.headers["retry-after"]) >= 1


def test_the_owner_stores_requests_that_come_to_another_broker(tmp_path: Path) -> None:
    otlp = {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}}

    async def test(endpoint: str) -> None:
        async with (
            cluster_nodes(tmp_path, endpoint, "a", "b", telemetry=otlp) as (a, b),
            door_of(a) as at_a,
            contextlib.AsyncExitStack() as of_b,
        ):
            at_b = await of_b.enter_async_context(door_of(b))
            assert await at_b.call(request(0)) == OK
            await knows_owner(a)
            assert await at_a.call(request(1)) == OK
            assert (await at_a.post(request(2))).status_code == 200
            assert at_b.stored() == [request(number) for number in range(3)]
            assert (at_a.counts.forwarded, at_a.counts.requests) == (2, {})

            again = [("x-frazil-forwarded", "1")]
            assert await at_a.call(request(3), headers=again) == Reply(
                grpc.StatusCode.UNAVAILABLE, f"{TOPIC} is owned by the broker b; send the call there", 100
            )
            answer = await at_a.post(request(3), x_frazil_forwarded="1")
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")

            tenants = b.node.telemetry(LOCAL).tenants(LOCAL)
            await asyncio.to_thread(tenants.change, "default", {"bytes_per_second": 1})
            await refused_by_owner(at_a)

            await of_b.aclose()
            gone = await at_a.call(request(4))
            assert gone.code is grpc.StatusCode.UNAVAILABLE
            assert gone.retry_ms == 500
            assert (await at_a.post(request(4))).status_code == 503

    with etcd_server(tmp_path / "etcd") as server:
        asyncio.run(asyncio.wait_for(test(server.endpoint), 150))


def test_a_forwarded_request_has_the_rights_of_its_sender_alone(tmp_path: Path) -> None:
    """A header that says that a broker has forwarded it gives no rights, and no broker passes its own token on."""
    otlp = {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}}
    forwarded, of_acme = ("x-frazil-forwarded", "1"), ("x-frazil-tenant", "acme")

    def key(token: str | None) -> tuple[str, str]:
        return "authorization", f"Bearer {token}"

    async def test(endpoint: str) -> None:
        async with (
            cluster_nodes(tmp_path, endpoint, "a", "b", telemetry=otlp, security={"enabled": True}) as (a, b),
            door_of(a) as at_a,
            door_of(b) as at_b,
        ):
            made = []
            for tenant in ("acme", "evil"):
                tenants = b.node.telemetry(LOCAL).tenants(LOCAL)
                made.append((await asyncio.to_thread(tenants.create, tenant, {}, with_key=True))["key"])
            acme, evil = (key(one["key"]) for one in made)
            assert await at_b.call(request(0), headers=[acme]) == OK
            await knows_owner(a, TopicName.parse("/acme.default/traces"))
            assert await at_a.call(request(1), headers=[acme]) == OK
            assert at_a.counts.forwarded == 1

            local = key(read_local_token(a.node.settings.data or a.node.settings.log_folder))
            for door, headers, code in (
                (at_a, [evil, of_acme], grpc.StatusCode.PERMISSION_DENIED),
                (at_b, [evil, of_acme, forwarded], grpc.StatusCode.PERMISSION_DENIED),
                (at_b, [of_acme, forwarded], grpc.StatusCode.UNAUTHENTICATED),
                (at_b, [local, of_acme, forwarded], grpc.StatusCode.UNAUTHENTICATED),
                (at_a, [local, of_acme], grpc.StatusCode.UNAVAILABLE),
            ):
                assert (await door.call(request(2), headers=headers)).code is code, headers
            await asyncio.to_thread(b.node.keys(LOCAL).revoke, made[0]["id"])
            assert (await at_b.call(request(3), headers=[acme, forwarded])).code is grpc.StatusCode.UNAUTHENTICATED
            assert at_a.counts.forwarded == 1

    with etcd_server(tmp_path / "etcd") as server:
        asyncio.run(asyncio.wait_for(test(server.endpoint), 150))

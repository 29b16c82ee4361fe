"""The audit log says what was changed, where the right alone does not: keys, roles, bindings, brokers, moved topics."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest

from frazil.core.principal import LOCAL
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from parts.cluster import Brokers, brokers
from parts.secured_door import ADMIN, opened

pytestmark = pytest.mark.timeout(120)

RULE = {"effect": "deny", "actions": ["read"], "kind": "topic", "pattern": "/shop/*"}


def changes(data: Path) -> list[tuple[Any, ...]]:
    """The lines of calls whose resource is that of no right. Each call has a line of its right too."""
    lines = [json.loads(line) for line in (data / "audit.log").read_text().splitlines()]
    kinds = ("key:", "role ", "binding ", "broker ", "topic ", "tenant ")
    called = [one for one in lines if one["call"] and one["action"] in ("grant", "operate")]
    found = [one for one in called if one["resource"].startswith(kinds)]
    assert all(one["request_id"] in {other["request_id"] for other in lines if other is not one} for one in found)
    assert all(one["allowed"] and one["from"] for one in found)
    return [(one["principal"], one["call"], one["resource"], one["reason"]) for one in found]


def test_grants_name_the_key_the_role_and_the_binding(tmp_path: Path) -> None:
    async def work() -> tuple[str, str]:
        async with opened(tmp_path) as door:
            made = (await door.call("POST", "/v1/keys", ADMIN, {"owner": "billing"})).json()
            bound = {"principal": made["principal"], "role": "reader", "scope": "/shop/*"}
            unbound = f"/v1/bindings?principal={made['principal']}&role=reader&scope=/shop/*"
            for method, url, body in (
                ("PUT", "/v1/roles/auditor", {"rules": [RULE]}),
                ("POST", "/v1/bindings", bound),
                ("DELETE", unbound, None),
                ("POST", f"/v1/keys/{made['id']}/rotate", {"overlap_ms": 5}),
                ("DELETE", f"/v1/keys/{made['id']}", None),
                ("DELETE", "/v1/roles/auditor?force=true", None),
            ):
                answer = await door.call(method, url, ADMIN, body)
                assert answer.status_code in (200, 201), answer.text
            assert (await door.call("DELETE", f"/v1/keys/{made['id']}", ADMIN)).status_code == 404
            return made["principal"], made["key"]

    principal, key = asyncio.run(asyncio.wait_for(work(), 60))
    binding = f"binding of {principal} to reader in /shop/*"
    found = [one for one in changes(tmp_path / "data") if one[1] != "POST /v1/namespaces"]  # before: the door's own
    assert found == [
        ("local", "POST /v1/keys", principal, "made"),
        (
            "local",
            "PUT /v1/roles/{name}",
            "role auditor",
            f"set to {json.dumps({'rules': [RULE]}, separators=(',', ':'))}",
        ),
        ("local", "POST /v1/bindings", binding, "added"),
        ("local", "DELETE /v1/bindings", binding, "removed"),
        ("local", "POST /v1/keys/{id}/rotate", principal, "rotated; the old secret stays valid for 5 ms"),
        ("local", "DELETE /v1/keys/{id}", principal, "revoked"),
        ("local", "DELETE /v1/roles/{name}", "role auditor", "deleted"),
    ]
    assert key not in (tmp_path / "data" / "audit.log").read_text()


def test_changes_of_tenants_name_the_tenant_and_its_keys(tmp_path: Path) -> None:
    async def work() -> tuple[str, str]:
        async with opened(tmp_path) as door:
            made = (await door.call("POST", "/v1/tenants", ADMIN, {"tenant": "shop"})).json()["key"]
            for method, url, body in (
                ("PUT", "/v1/tenants/shop/settings", {"freshness_ms": 60_000}),
                ("POST", "/v1/tenants/shop/rotate-key", {"overlap_ms": 5}),
                ("DELETE", "/v1/tenants/shop", None),
            ):
                answer = await door.call(method, url, ADMIN, body)
                assert answer.status_code == 200, answer.text
            assert answer.json()["done"]
            assert (await door.call("DELETE", "/v1/tenants/shop", ADMIN)).status_code == 404
            return made["principal"], made["key"]

    principal, key = asyncio.run(asyncio.wait_for(work(), 60))
    found = [one[1:] for one in changes(tmp_path / "data") if "/tenants" in one[1]]
    delete = "DELETE /v1/tenants/{tenant}"
    assert found == [
        ("POST /v1/tenants", "tenant shop", "made with {}"),
        ("POST /v1/tenants", principal, "made"),
        ("POST /v1/tenants", f"binding of {principal} to tenant in /shop.*/*", "added"),
        ("PUT /v1/tenants/{tenant}/settings", "tenant shop", 'set to {"freshness_ms":60000}'),
        (
            "POST /v1/tenants/{tenant}/rotate-key",
            principal,
            "rotated; the old secret stays valid for 5 ms",
        ),
        (delete, principal, "revoked"),
        (delete, "tenant shop", "deleted with 0 topics, 0 tables, 1 keys, 0 bindings"),
    ]
    assert key not in (tmp_path / "data" / "audit.log").read_text()


def test_moves_name_the_topic_and_the_brokers(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with brokers(data, security={"enabled": True}) as two:
        record, key = two.node.keys(LOCAL).create("tests")
        two.node.bindings(LOCAL).add(record.principal, "admin")
        for name in ("/shop/one", "/shop/two", "/shop/three"):
            two.node.storage.create_topic(name)
            two.cluster.give(name, "a")
        headers = {"authorization": f"Bearer {key}"}
        for path, body in (
            ("/v1/topics/shop/one/move", {"to": "b"}),
            ("/v1/cluster/rebalance", {"dry_run": True}),
            ("/v1/cluster/brokers/b/drain", {}),
            ("/v1/cluster/brokers/b/activate", {}),
            ("/v1/cluster/rebalance", {}),
        ):
            assert httpx.post(two["a"].http + path, json=body, headers=headers, timeout=20).status_code == 200, path
        unload(two, key, "TopicAdmin/UnloadTopic", pb.TopicRequest(name="/shop/two"))
        unload(two, key, "BrokerAdmin/UnloadBroker", pb.UnloadBrokerRequest(broker_id="b"))
    found = [(call.rpartition("/")[2], resource, reason) for _, call, resource, reason in changes(data)]
    assert {who for who, *_ in changes(data)} == {record.principal}
    assert found == [
        ("move", "topic /shop/one", "moved to b"),
        ("drain", "broker b", "drained: 1 of 1 topics moved"),
        ("activate", "broker b", "activated"),
        ("rebalance", "topic /shop/one", "moved to b"),
        ("UnloadTopic", "topic /shop/two", "moved to b"),
        ("UnloadBroker", "broker b", "unloaded: 2 of 2 topics moved"),
    ]


def unload(two: Brokers, key: str, method: str, asked: Any) -> None:
    with grpc.insecure_channel(two["a"].admin.removeprefix("http://")) as channel:
        call = channel.unary_unary(f"/danube_admin.{method}", type(asked).SerializeToString)
        call(asked, metadata=[("authorization", f"Bearer {key}")], timeout=20)

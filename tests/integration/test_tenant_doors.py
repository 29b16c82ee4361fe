"""What a tenant learns of another through the doors of a real server: as much as of one that does not exist.

Every route of the HTTP door is called, as its own description lists them: a new one is called too. Each call is made
twice, with the names of a tenant that exists and of one that does not: the answers may differ in these names alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import pyarrow as pa
import pyarrow.flight
import pytest

from frazil.node.access.local_token import read_local_token
from parts.tenants import SECTIONS, FlightTenant, Secured, batch

pytestmark = pytest.mark.timeout(240)

SECRET = "bank_of_the_north"
"""In every name and row of the other tenant."""
NOBODY = "nobody_of_south__"
OWN = {
    "GET /v1/whoami",
    "GET /health/live",
    "GET /health/ready",
    "GET /v1/server",
    "GET /v1/topics",
    "GET /v1/namespaces",
    "GET /v1/schemas",
    "GET /v1/tables",
    "GET /v1/pipeline",
    "GET /v1/tenants",
}
"""Routes without a name in them that answer a tenant: with its own things alone."""
JOB = "00000000-0000-4000-8000-000000000000"


class World(NamedTuple):
    server: Secured
    addresses: dict[str, Any]
    acme: str
    key_id: str
    """Of the other tenant's key."""
    job: str
    """A proof of the other tenant's topic."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    server = Secured(tmp_path_factory.mktemp("doors"), others=SECTIONS)
    addresses = server.start()
    try:
        acme, bank = server.tenant("acme"), server.tenant(SECRET)
        with FlightTenant(server.flight, bank) as client:
            client.put(("eu", "readings"), batch(secret=[SECRET]))
        with FlightTenant(server.flight, acme) as client:
            client.put(("eu", "own"), batch(x=[1]))
        namespace = f"{SECRET}.eu"
        server.as_admin("POST", "/v1/topics", {"topic": f"/{namespace}/orders"})
        server.as_admin("POST", "/v1/topics", {"topic": "/acme.eu/orders"})
        schema = {"schema_type": "string", "definition": "string"}
        server.as_admin("POST", f"/v1/schemas/{quote(f'/{namespace}/orders', safe='')}/versions", schema)
        listed = server.as_admin("GET", f"/v1/tenants/{SECRET}")
        job = server.as_admin("POST", "/v1/verify", {"topic": f"/{namespace}/orders"})
        yield World(server, addresses, acme, listed["keys"][0], job["id"])
        assert "Traceback" not in server.log()
    finally:
        server.kill()


def body_of(kind: str, tenant: str) -> Any:
    topic, schema = f"/{tenant}.eu/orders", {"schema_type": "string", "definition": "string"}
    found: dict[str, Any] = {
        "NewTopic": {"topic": topic},
        "NewNamespace": {"namespace": f"{tenant}.eu"},
        "NewSchema": schema,
        "SchemaCheck": schema,
        "SubjectMode": {"compatibility_mode": "none"},
        "NewTopicSchema": {"subject": topic},
        "Retention": {"age_ms": 60_000},
        "NewVerify": {"topic": topic},
        "NewCheck": {"topic": topic},
        "NewKey": {"owner": tenant},
        "NewBinding": {"principal": "jwt:a", "role": "tenant", "scope": f"/{tenant}.*/*"},
        "NewTenant": {"tenant": tenant},
        "TenantSettings": {"datasets": 1},
        "KeyOfTenant": {},
        "TopicMove": {"to": "1"},
        "RoleRules": {"rules": [{"actions": ["read"], "kind": "topic", "pattern": f"/{tenant}.*/*"}]},
    }
    return found.get(kind, {})


def routes(world: World) -> list[tuple[str, str, str]]:
    """Method, path and name of the body of every operation."""
    described = httpx.get(f"{world.server.http}/openapi.json", timeout=30).json()["paths"]
    found = []
    for path, operations in described.items():
        for method, one in operations.items():
            content = one.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            kinds = re.findall(r"schemas/(\w+)", str(content))
            found.append((method.upper(), path, kinds[0] if kinds else ""))
    return found


def call(world: World, method: str, path: str, kind: str, tenant: str) -> httpx.Response:
    exists = tenant == SECRET
    given = {
        "namespace": f"{tenant}.eu",
        "topic": "orders",
        "subscription": "billing",
        "subject": quote(f"/{tenant}.eu/orders", safe=""),
        "version": "1",
        "tenant": tenant,
        "id": world.key_id if exists else "a" * len(world.key_id),
        "job": world.job if exists else JOB[: len(world.job)],
        "name": "tenant",
        "broker": "1",
    }
    url = world.server.http + path.format(**given)
    body = body_of(kind, tenant) if kind else None
    return httpx.request(method, url, json=body, headers={"authorization": f"Bearer {world.acme}"}, timeout=60)


def told(answer: httpx.Response, world: World) -> tuple[int, str]:
    text = answer.text
    for name, shown in ((SECRET, "T"), (NOBODY, "T"), (world.key_id, "ID"), ("a" * len(world.key_id), "ID")):
        text = text.replace(name, shown)
    text = text.replace(world.job, "JOB").replace(JOB, "JOB")
    return answer.status_code, re.sub(r'"request_id":"[^"]*"', "", text)


def test_every_route_answers_for_a_foreign_tenant_as_for_none(world: World) -> None:
    known = routes(world)
    assert len(known) > 60
    differing, passed = [], []
    for method, path, kind in known:
        there, absent = (call(world, method, path, kind, tenant) for tenant in (SECRET, NOBODY))
        name = f"{method} {path}"
        if name in OWN:
            assert SECRET not in there.text, name
            continue
        if told(there, world) != told(absent, world):
            differing.append((name, there.status_code, there.text, absent.status_code, absent.text))
        if there.is_success:
            passed.append(name)
    assert not differing
    assert passed == []
    as_admin = World(world.server, world.addresses, admin_token(world), world.key_id, world.job)
    found = [told(call(as_admin, "GET", "/v1/tenants/{tenant}", "", one), world) for one in (SECRET, NOBODY)]
    assert found[0] != found[1], "who may know of tenants sees the difference"


def admin_token(world: World) -> str:
    found = read_local_token(world.server.folder / "data")
    assert found is not None
    return found


QUERIES = (
    'select * from "{}.eu".readings',
    "select * from {}.eu.readings",
    'describe "{}.eu".readings',
    'select count(*) from "{}.eu".absent',
    'select * from "acme.eu".own where x = (select count(*) from "{}.eu".readings)',
)
LISTS = (
    "select table_schema, table_name from information_schema.tables",
    "select schema_name from information_schema.schemata",
    "select * from duckdb_tables()",
    "select * from duckdb_columns()",
    "show all tables",
    "select * from duckdb_settings()",
)


def asked(client: FlightTenant, query: str) -> str:
    ticket = pa.flight.Ticket(json.dumps({"sql": {"query": query}}).encode())
    try:
        return str(client.client.do_get(ticket, client.options).read_all().to_pylist())
    except pa.ArrowException as error:
        return str(error)


def test_a_query_sees_nothing_of_a_foreign_tenant(world: World) -> None:
    with FlightTenant(world.server.flight, world.acme) as client:
        assert asked(client, 'select x from "acme.eu".own') == "[{'x': 1}]"
        for query in QUERIES:
            there, absent = (asked(client, query.format(one)) for one in (SECRET, NOBODY))
            assert there.replace(SECRET, "T") == absent.replace(NOBODY, "T")
            assert "there is no topic or table" in there
        for query in LISTS:
            assert SECRET not in asked(client, query), query


@pytest.mark.parametrize("signal", ["traces", "logs", "metrics"])
def test_requests_for_a_foreign_tenant_are_refused_as_for_none(world: World, signal: str) -> None:
    found = []
    for tenant in (SECRET, NOBODY):
        headers = {
            "authorization": f"Bearer {world.acme}",
            "x-frazil-tenant": tenant,
            "x-frazil-dataset": "eu",
            "content-type": "application/json",
        }
        url = f"{world.addresses['otlp_http']}/v1/{signal}"
        answer = httpx.post(url, content=b"{}", headers=headers, timeout=60)
        assert answer.status_code == 403
        found.append(answer.text.replace(tenant, "T"))
    assert found[0] == found[1]

"""Every route of the admin door: only a caller with exactly the rights that it needs passes, and nothing else changes
anything."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

import frazil
from frazil.core.access import SERVER, Action, Right, namespace, schema, subscription, table, topic
from frazil.core.principal import LOCAL
from frazil.doors.http.access import PUBLIC, check_declared
from frazil.doors.http.admin.rights import STATE_OF_SERVER
from frazil.doors.http.door import make_app
from frazil.node.node import Node
from frazil.node.telemetry.scopes import resource_of
from parts.secured_door import LETTERS, ORDERS, SUBJECT, SUBSCRIPTION, TEXT, Door, run

DESCRIBE, READ, PRODUCE, CREATE, ALTER, DELETE, OPERATE = (
    Action.DESCRIBE, Action.READ, Action.PRODUCE, Action.CREATE, Action.ALTER, Action.DELETE, Action.OPERATE
)  # fmt: skip


class Call(NamedTuple):
    """A valid call of a route, the rights that it needs, and its status."""

    url: str
    rights: tuple[Right, ...] = ()
    body: Any = None
    status: int = 200


def _topic(action: Action) -> tuple[Right, ...]:
    return (Right(action, topic(ORDERS)),)


def _subscription(action: Action) -> tuple[Right, ...]:
    return (Right(DESCRIBE, topic(ORDERS)), Right(action, subscription(ORDERS, SUBSCRIPTION)))


def _schema(action: Action) -> tuple[Right, ...]:
    return (Right(action, schema(SUBJECT)),)


def _jobs(kind: str, body: dict[str, Any]) -> dict[str, Call]:
    operate = (Right(OPERATE, SERVER),)
    return {
        f"POST /v1/{kind}": Call(f"/v1/{kind}", (*operate, *_topic(DESCRIBE)), {**body, "topic": ORDERS}, 202),
        f"GET /v1/{kind}": Call(f"/v1/{kind}", operate),
        f"GET /v1/{kind}/{{job}}": Call(f"/v1/{kind}/no-such", operate, status=404),
        f"DELETE /v1/{kind}/{{job}}": Call(f"/v1/{kind}/no-such", operate, status=404),
    }


_AT = "/v1/topics/{namespace}/{topic}"
_OF = f"{_AT}/subscriptions/{{subscription}}"
_URL = f"/v1/topics{ORDERS}"
_OWN = f"{_URL}/subscriptions/{SUBSCRIPTION}"
_READING = (Right(DESCRIBE, topic(ORDERS)), Right(READ, topic(LETTERS)))
_OPERATE = Right(OPERATE, SERVER)
_GRANT = (Right(Action.GRANT, SERVER),)

CALLS = {
    "GET /metrics": Call("/metrics", (Right(OPERATE, SERVER),)),
    "GET /v1/server": Call("/v1/server"),
    "GET /v1/topics": Call("/v1/topics"),
    "POST /v1/topics": Call("/v1/topics", (Right(CREATE, topic("/shop/new")),), {"topic": "/shop/new"}, 201),
    f"GET {_AT}": Call(_URL, _topic(DESCRIBE)),
    f"GET {_AT}/owner": Call(f"{_URL}/owner", _topic(DESCRIBE)),
    f"POST {_AT}/move": Call(
        f"{_URL}/move", (_OPERATE, *_topic(DESCRIBE), *_topic(DELETE)), {"accept_loss": True}, 409
    ),
    "GET /v1/cluster/brokers": Call("/v1/cluster/brokers", (Right(DESCRIBE, SERVER),)),
    "GET /v1/cluster/balance": Call("/v1/cluster/balance", (Right(DESCRIBE, SERVER),)),
    "POST /v1/cluster/rebalance": Call("/v1/cluster/rebalance", (_OPERATE,), {}, 409),
    "POST /v1/cluster/brokers/{broker}/drain": Call("/v1/cluster/brokers/b/drain", (_OPERATE,), {}, 409),
    "POST /v1/cluster/brokers/{broker}/activate": Call("/v1/cluster/brokers/b/activate", (_OPERATE,), status=409),
    f"GET {_AT}/partitions": Call(f"{_URL}/partitions", _topic(DESCRIBE)),
    f"GET {_AT}/retention": Call(f"{_URL}/retention", _topic(DESCRIBE)),
    f"PUT {_AT}/retention": Call(f"{_URL}/retention", _topic(ALTER), {"age_ms": 60_000}),
    f"DELETE {_AT}/retention": Call(f"{_URL}/retention", _topic(ALTER)),
    f"GET {_AT}/producers": Call(f"{_URL}/producers", _topic(DESCRIBE)),
    f"GET {_AT}/subscriptions": Call(f"{_URL}/subscriptions", _topic(DESCRIBE)),
    f"GET {_OF}": Call(_OWN, _subscription(DESCRIBE)),
    f"GET {_OF}/consumers": Call(f"{_OWN}/consumers", _subscription(DESCRIBE)),
    f"POST {_OF}/reset": Call(f"{_OWN}/reset", _subscription(ALTER), {"to": "earliest"}),
    f"GET {_OF}/policy": Call(f"{_OWN}/policy", _subscription(DESCRIBE)),
    f"PUT {_OF}/policy": Call(
        f"{_OWN}/policy",
        (*_subscription(ALTER), Right(PRODUCE, topic("/shop/lost")), Right(CREATE, topic("/shop/lost"))),
        {"dead_letter_topic": "/shop/lost"},
    ),
    f"DELETE {_OF}/policy": Call(f"{_OWN}/policy", _subscription(ALTER)),
    f"GET {_AT}/dead-letters": Call(f"{_URL}/dead-letters", _READING),
    f"POST {_AT}/dead-letters/replay": Call(
        f"{_URL}/dead-letters/replay", (*_READING, *_topic(PRODUCE)), {"which": "all"}
    ),
    "GET /v1/schemas": Call("/v1/schemas"),
    "GET /v1/schemas/{subject}": Call(f"/v1/schemas/{SUBJECT}", _schema(DESCRIBE)),
    "PUT /v1/schemas/{subject}": Call(f"/v1/schemas/{SUBJECT}", _schema(ALTER), {"compatibility_mode": "none"}),
    "GET /v1/schemas/{subject}/versions": Call(f"/v1/schemas/{SUBJECT}/versions", _schema(DESCRIBE)),
    "POST /v1/schemas/{subject}/versions": Call("/v1/schemas/new/versions", (Right(CREATE, schema("new")),), TEXT, 201),
    "GET /v1/schemas/{subject}/latest": Call(f"/v1/schemas/{SUBJECT}/latest", _schema(DESCRIBE)),
    "GET /v1/schemas/{subject}/versions/{version}": Call(f"/v1/schemas/{SUBJECT}/versions/1", _schema(DESCRIBE)),
    "POST /v1/schemas/{subject}/check": Call(f"/v1/schemas/{SUBJECT}/check", _schema(DESCRIBE), TEXT),
    f"PUT {_AT}/schema": Call(f"{_URL}/schema", (*_topic(ALTER), *_schema(DESCRIBE)), {"subject": SUBJECT}),
    f"GET {_AT}/schema": Call(f"{_URL}/schema", _topic(DESCRIBE)),
    "GET /v1/pipeline": Call("/v1/pipeline", (Right(DESCRIBE, SERVER),)),
    "GET /v1/tables": Call("/v1/tables"),
    "GET /v1/tables/{namespace}/{topic}": Call(
        f"/v1/tables{ORDERS}", (Right(DESCRIBE, table("shop", "orders")),), status=404
    ),
    "GET /v1/namespaces": Call("/v1/namespaces"),
    "POST /v1/namespaces": Call("/v1/namespaces", (Right(CREATE, namespace("new")),), {"namespace": "new"}, 201),
    "DELETE /v1/namespaces/{namespace}": Call("/v1/namespaces/empty", (Right(DELETE, namespace("empty")),)),
    **_jobs("verify", {}),
    **_jobs("maintenance", {"verb": "compact"}),
    **_jobs("log-checks", {}),
    "DELETE /v1/schemas/{subject}/versions/{version}": Call(f"/v1/schemas/{SUBJECT}/versions/1", _schema(DELETE)),
    f"DELETE {_OF}": Call(_OWN, _subscription(DELETE)),
    f"DELETE {_AT}": Call(f"{_URL}?force=true", _topic(DELETE)),
    "GET /v1/whoami": Call("/v1/whoami"),
    "GET /v1/keys": Call("/v1/keys", _GRANT),
    "POST /v1/keys": Call("/v1/keys", _GRANT, {"owner": "thief"}, 201),
    "POST /v1/keys/{id}/rotate": Call("/v1/keys/SPARE/rotate", _GRANT, {}),
    "DELETE /v1/keys/{id}": Call("/v1/keys/SPARE", _GRANT),
    "GET /v1/roles": Call("/v1/roles", _GRANT),
    "GET /v1/roles/{name}": Call("/v1/roles/spare", _GRANT),
    "PUT /v1/roles/{name}": Call("/v1/roles/new", _GRANT, {"rules": [{"actions": ["grant"], "kind": "server"}]}),
    "DELETE /v1/roles/{name}": Call("/v1/roles/spare", _GRANT),
    "GET /v1/bindings": Call("/v1/bindings", _GRANT),
    "POST /v1/bindings": Call("/v1/bindings", _GRANT, {"principal": "jwt:thief", "role": "admin"}, 201),
    "DELETE /v1/bindings": Call("/v1/bindings?principal=jwt:spare&role=reader", _GRANT),
    "GET /v1/tenants": Call("/v1/tenants"),
    "POST /v1/tenants": Call("/v1/tenants", _GRANT, {"tenant": "bank"}, 201),
    "GET /v1/tenants/{tenant}": Call("/v1/tenants/acme", (Right(DESCRIBE, resource_of("acme")),)),
    "PUT /v1/tenants/{tenant}/settings": Call("/v1/tenants/acme/settings", _GRANT, {"datasets": 3}),
    "POST /v1/tenants/{tenant}/rotate-key": Call("/v1/tenants/acme/rotate-key", _GRANT, {}),
    "DELETE /v1/tenants/{tenant}": Call("/v1/tenants/acme", _GRANT),
}
"""In an order in which each succeeds."""

STATE = [
    "/v1/topics", "/v1/namespaces", "/v1/schemas", f"{_URL}/partitions", f"{_URL}/retention", f"{_URL}/subscriptions",
    f"{_OWN}/policy",
    f"/v1/schemas/{SUBJECT}/versions", "/v1/verify", "/v1/maintenance", "/v1/log-checks", f"{_URL}/dead-letters",
    "/v1/keys", "/v1/roles/spare", "/v1/roles/admin", "/v1/bindings?principal=jwt:spare",
    "/v1/bindings?principal=jwt:thief", "/v1/tenants",
]  # fmt: skip


STATE_ROUTES = ("GET /metrics", "GET /v1/pipeline", "GET /v1/cluster/brokers", "GET /v1/cluster/balance")
"""One of two rights on the server is enough."""


def routes(app: FastAPI) -> list[str]:
    found = iter_route_contexts(app.routes)
    return [f"{method} {one.path}" for one in found for method in one.methods or () if one.path not in PUBLIC]


# --- every route


@run
async def test_every_route_has_a_sample_here(door: Door) -> None:
    assert sorted(routes(door.app)) == sorted(CALLS)


@run
async def test_without_valid_credentials_no_route_answers_and_nothing_changes(door: Door) -> None:
    every = {right for one in CALLS.values() for right in one.rights}
    door.add("revoked", *every)
    door.add("expired", *every, lifetime_ms=1)
    assert (await door.call("GET", "/v1/whoami", "revoked")).status_code == 200
    door.node.keys(LOCAL).revoke(door.ids["revoked"])
    await asyncio.sleep(0.01)
    key = door.keys["expired"]
    wrong = key[:-1] + ("a" if key[-1] != "a" else "b")
    before = [await door.get(url) for url in STATE]
    for route in routes(door.app):
        sample = CALLS[route]
        for token in (None, wrong, "expired", "revoked", "", "x" * 20):
            answer = await door.call(route.split()[0], sample.url, token, sample.body)
            assert answer.status_code == 401, (route, token, answer.text)
            assert answer.json()["error"] == "unauthenticated"
            assert answer.headers["www-authenticate"] == "Bearer"
    assert [await door.get(url) for url in STATE] == before


@run
async def test_without_one_of_its_rights_no_route_does_anything(door: Door) -> None:
    door.add("lacking")
    before = [await door.get(url) for url in STATE]
    every = {right for one in CALLS.values() for right in one.rights}
    for route in routes(door.app):
        sample = CALLS[route]
        for lacking in sample.rights:
            others = every - {lacking}
            if route in STATE_ROUTES:
                others = {one for one in every if one not in STATE_OF_SERVER}
            door.add("lacking", *others)
            answer = await door.call(route.split()[0], sample.url, "lacking", sample.body)
            assert answer.status_code == 403, (route, lacking, answer.text)
            assert answer.json()["error"] == "permission_denied"
    assert [await door.get(url) for url in STATE] == before


@run
async def test_with_exactly_its_rights_every_route_answers(door: Door) -> None:
    there = set(routes(door.app))
    for route, sample in CALLS.items():
        assert route in there
        door.add("right", *sample.rights)
        answer = await door.call(route.split()[0], sample.url, "right", sample.body)
        assert answer.status_code == sample.status, (route, answer.text)


@run
async def test_one_caller_can_only_do_what_another_one_may(door: Door) -> None:
    """The same refusal whether or not the resource exists."""
    door.add("stranger", Right(DESCRIBE, topic("/other/topic")))
    for url, missing in ((_URL, "/v1/topics/shop/nothing"), (_OWN, f"{_URL}/subscriptions/none")):
        for path in ("", "/policy") if url == _OWN else ("", "/retention", "/schema", "/dead-letters", "/producers"):
            told = [await door.call("GET", one + path, "stranger") for one in (url, missing)]
            assert [one.status_code for one in told] == [403, 403]
            texts = [one.text.replace("nothing", "orders").replace("none", SUBSCRIPTION) for one in told]
            assert texts[0] == texts[1]


def test_a_route_that_declares_nothing_is_refused_at_the_start(tmp_path: Path) -> None:
    with frazil.open(tmp_path) as storage:
        app = make_app(Node(storage))

        @app.get("/v1/forgotten")
        def forgotten() -> None: ...

        with pytest.raises(RuntimeError, match="/v1/forgotten declares no rights"):
            check_declared(app)

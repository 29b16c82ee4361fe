"""Callers of the admin door: how they are identified, what lists show them, and rights that nobody can borrow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.core.access import SERVER, Action, Right, subscription, topic
from frazil.core.clock import SystemClock
from frazil.core.errors import PermissionDenied
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.core.settings import make_settings
from frazil.doors.client_certificates import SCOPE_EXTENSION, ClientCertificate
from frazil.doors.http.door import make_app
from frazil.node.access.gate import Credentials
from frazil.node.node import Node
from parts.secured_door import ADMIN, LETTERS, ORDERS, SUBSCRIPTION, TEXT, Door, opened, run

_URL = f"/v1/topics{ORDERS}"
_OWN = f"{_URL}/subscriptions/{SUBSCRIPTION}"
KNOW = Right(Action.DESCRIBE, topic(ORDERS))
READING = (KNOW, Right(Action.READ, topic(LETTERS)))
ALTERING = (KNOW, Right(Action.ALTER, subscription(ORDERS, SUBSCRIPTION)))
DESCRIBE, OPERATE, PRODUCE = Action.DESCRIBE, Action.OPERATE, Action.PRODUCE


# --- who calls


@run
async def test_the_gate_gets_header_certificate_and_peer_and_a_large_header_never_arrives(door: Door) -> None:
    seen: list[Credentials] = []
    door.node.gate = gate = _Watched(door.node.gate, seen)
    await door.call("GET", "/v1/server", ADMIN)
    assert seen[-1] == Credentials(f"Bearer {door.keys[ADMIN]}", None, "10.1.2.3:4711")
    asked = len(seen)
    answer = await door.call("GET", "/v1/server", "x" * 16_384)
    assert (answer.status_code, len(seen)) == (401, asked)
    assert "16384 bytes" in answer.json()["message"]
    twice = [("authorization", f"Bearer {door.keys[ADMIN]}"), ("authorization", "Bearer other")]
    answer = await door.client.get("/v1/server", headers=twice)
    assert (answer.status_code, len(seen)) == (401, asked)
    assert gate.is_on

    async def with_certificate(scope: Any, receive: Any, send: Any) -> None:
        found = ClientCertificate("client.example", SystemClock().now_us() + 60_000_000)
        await door.app({**scope, "extensions": {SCOPE_EXTENSION: found}}, receive, send)

    transport = httpx.ASGITransport(with_certificate)
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answer = await client.get("/v1/whoami")
    assert answer.json()["principal"] == "cert:client.example"


class _Watched:
    def __init__(self, gate: Any, seen: list[Credentials]) -> None:
        self._gate, self._seen = gate, seen

    def known(self, given: Credentials) -> Principal | None:
        self._seen.append(given)
        found: Principal | None = self._gate.known(given)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gate, name)


@run
async def test_the_caller_is_known_before_a_body_is_read(door: Door) -> None:
    read: list[bytes] = []

    async def body() -> AsyncIterator[bytes]:
        for part in (b'{"topic": ', b'"/shop/new"}'):
            read.append(part)
            yield part

    for name, status in ((None, 401), (ADMIN, 201)):
        headers = {} if name is None else {"authorization": f"Bearer {door.keys[name]}"}
        headers["content-type"] = "application/json"
        read.clear()
        answer = await door.client.post("/v1/topics", content=body(), headers=headers)
        assert (answer.status_code, len(read) > 0) == (status, name is not None)


def test_a_used_up_quota_is_429_with_a_retry_hint(tmp_path: Path) -> None:
    async def work() -> None:
        async with opened(tmp_path, quota={"requests_per_second": 1}) as door:
            door.add("busy", KNOW)
            door.add("other", KNOW)
            answers = [await door.call("GET", _URL, "busy") for _ in range(4)]
            assert [one.status_code for one in answers[:1]] == [200]
            refused = [one for one in answers if one.status_code != 200]
            assert refused
            for one in refused:
                assert (one.status_code, one.json()["error"]) == (429, "quota_exceeded")
                assert int(one.headers["retry-after"]) >= 1
            assert (await door.call("GET", _URL, "other")).status_code == 200
            assert (await door.call("GET", "/health/live", "busy")).status_code == 200

    asyncio.run(work())


@run
async def test_an_unknown_path_tells_nothing_to_unknown_callers(door: Door) -> None:
    assert (await door.call("GET", "/v1/nothing", None)).status_code == 401
    assert (await door.call("PATCH", "/v1/topics", None)).status_code == 401
    assert (await door.call("GET", "/v1/nothing", ADMIN)).status_code == 404


def test_before_the_node_has_started_nobody_is_let_in(tmp_path: Path) -> None:
    async def asked() -> None:
        settings = make_settings({"data": tmp_path / "data", "security": {"enabled": True}})
        with frazil.open(settings) as storage:
            transport = httpx.ASGITransport(make_app(Node(storage)))
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
                assert (await client.get("/v1/topics")).status_code == 503
                assert (await client.get("/metrics")).status_code == 503
                assert (await client.get("/health/live")).status_code == 200
                assert set((await client.get("/health/ready")).json()) == {"status"}

    asyncio.run(asked())


# --- health


@run
async def test_readiness_has_details_only_for_callers_that_may_know_the_server(door: Door) -> None:
    door.add("nobody")
    door.add("watcher", Right(DESCRIBE, SERVER))
    door.add("operator", Right(OPERATE, SERVER))
    for token in (None, "wrong", "nobody"):
        answer = await door.call("GET", "/health/ready", token)
        assert set(answer.json()) == {"status"}, token
    for token in ("watcher", "operator", ADMIN):
        answer = await door.call("GET", "/health/ready", token)
        assert {"status", "opened", "topics", "warnings"} <= set(answer.json()), token
    assert (await door.call("GET", "/metrics", "watcher")).status_code == 200
    assert (await door.call("GET", "/openapi.json", None)).status_code == 200


# --- lists


@run
async def test_lists_are_what_the_caller_may_know_and_pages_have_no_holes(door: Door) -> None:
    for number in range(9):
        await door.node.create_topic(LOCAL, TopicName.parse(f"/{'seen' if number % 3 == 0 else 'hidden'}/t{number}"))
        await door.node.subscribe(LOCAL, ORDERS, f"s{number}", Kind.SHARED, "c")
        await door.call("POST", f"/v1/schemas/subject{number}/versions", ADMIN, TEXT)
    door.allow(
        "some",
        ("allow", "describe", "topic", "/seen/*"),
        ("allow", "describe", "topic", ORDERS),
        ("allow", "describe", "subscription", f"{ORDERS}/s*"),
        ("deny", "describe", "subscription", f"{ORDERS}/s4"),
        ("allow", "describe", "namespace", "/seen"),
        ("allow", "describe", "schema", "subject3"),
        ("allow", "describe", "server", "*"),
    )
    door.add("none")
    expected = {
        "/v1/topics": ["/seen/t0", "/seen/t3", "/seen/t6", ORDERS],
        f"{_URL}/subscriptions": [f"s{number}" for number in range(9) if number != 4],
        "/v1/namespaces": ["seen"],
        "/v1/schemas": ["subject3"],
        "/v1/tables": [],
    }
    for url, names in expected.items():
        assert await _pages(door, url, "some") == names
        if "subscriptions" not in url:
            assert await door.get(url, "none") == {"items": [], "next": None}
    told = await door.get("/v1/pipeline?limit=2", "some")
    assert ([one["topic"] for one in told["topics"]], told["next"]) == (["/seen/t0", "/seen/t3"], "/seen/t3")


async def _pages(door: Door, url: str, token: str) -> list[str]:
    """All names, by pages of one: each has one entry, and `next` names an entry that was shown."""
    found: list[str] = []
    after: str | None = None
    while True:
        page = await door.get(f"{url}?limit=1" + ("" if after is None else f"&after={after}"), token)
        names = [one if isinstance(one, str) else _name(one) for one in page["items"]]
        found += names
        after = page["next"]
        if after is None:
            return found
        assert names == [after]


def _name(item: dict[str, Any]) -> str:
    return str(item.get("subscription") or item.get("subject") or item.get("table") or item["topic"])


# --- borrowed rights


@run
async def test_a_forged_letter_does_not_lend_the_right_to_publish(door: Door) -> None:
    """Who may publish to a dead-letter topic can name any topic as the original one."""
    await door.node.create_topic(LOCAL, TopicName.parse(LETTERS))
    await door.node.create_topic(LOCAL, TopicName.parse("/bank/payments"))
    letters = door.node.topic(LOCAL, LETTERS)
    for target in ("/bank/payments", "/bank/nothing"):
        letters.publish(b"forged", attributes={"x-original-topic": target})
    door.add("thief", *READING, Right(PRODUCE, topic(ORDERS)))
    url = f"{_URL}/dead-letters/replay"
    for offset in (0, 1):
        answer = await door.call("POST", url, "thief", {"which": "one", "offset": offset})
        assert (answer.status_code, answer.json()["error"]) == (403, "permission_denied")
    assert (await door.call("POST", url, "thief", {"which": "all"})).status_code == 403
    assert door.node.topic(LOCAL, "/bank/payments").stats().end == 0


@run
async def test_a_policy_sends_letters_only_where_its_author_may(door: Door) -> None:
    door.add("consumer", *ALTERING)
    body = {"dead_letter_topic": "/bank/payments"}
    assert (await door.call("PUT", f"{_OWN}/policy", "consumer", body)).status_code == 403
    assert (await door.call("PUT", f"{_OWN}/policy", "consumer", {"redeliveries_max": 3})).status_code == 200


@run
async def test_the_node_filters_what_a_job_may_name(door: Door) -> None:
    door.add("operator", Right(OPERATE, SERVER))
    told = [await door.call("POST", "/v1/verify", "operator", {"topic": name}) for name in (ORDERS, "/shop/nothing")]
    assert [one.status_code for one in told] == [403, 403]
    with pytest.raises(PermissionDenied):
        door.node.describe_topic(Principal(f"key:{door.ids['operator']}"), TopicName.parse(ORDERS))

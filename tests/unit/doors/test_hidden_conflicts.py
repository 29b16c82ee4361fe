"""What exists and the caller may not know of is in the way of something new: the refusal is that of a missing right."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from parts.secured_door import ADMIN, Door, opened, run

HIDDEN, PARTED, LIVE = "/shop/salaries", "/shop/parted", "/shop/live"
CONFLICTS: list[dict[str, Any]] = [
    {"topic": HIDDEN},
    {"topic": "/shop/Salaries"},
    {"topic": "/SHOP/salaries"},
    {"topic": HIDDEN, "partitions": 2},
    {"topic": "/shop/SALARIES", "partitions": 2},
    {"topic": f"{HIDDEN}-part-0"},
    {"topic": PARTED},
    {"topic": PARTED, "partitions": 2},
    {"topic": PARTED, "partitions": 3},
    {"topic": f"{PARTED}-part-1"},
    {"topic": f"{PARTED}-part-01"},
    {"topic": "/shop/Parted-part-7"},
    {"topic": LIVE},
    {"topic": "/shop/Live", "reliable": False},
    {"topic": "/shop/LIVE", "schema": [{"name": "a", "type": "int64"}]},
]
"""New topics that cannot be created because of one that exists."""
CREATE = ("allow", "create", "*", "*")


async def prepared(door: Door) -> None:
    for name, form in ((HIDDEN, {}), (PARTED, {"partitions": 2}), (LIVE, {"reliable": False})):
        await door.node.create_topic(LOCAL, TopicName.parse(name), **form)  # type: ignore[arg-type]
    door.allow("maker", CREATE, ("allow", "delete", "namespace", "*"))
    door.allow("knower", CREATE, ("allow", "delete", "namespace", "*"), ("allow", "describe", "*", "*"))
    door.allow("denied", ("allow", "read", "topic", "/none/none"))


async def refusals(door: Door, call: Callable[[str], Awaitable[httpx.Response]]) -> None:
    """The call is answered alike to a caller that may do it, of whom something is hidden, and to one that may not."""
    answers = []
    for name in ("maker", "denied"):
        answer = await call(name)
        assert answer.status_code == 403, answer.text
        answers.append(answer.text.replace(door.ids[name], "ID"))
    assert answers[0] == answers[1]


@run
async def test_a_topic_in_the_way_is_not_named_to_a_caller_that_may_not_describe_it(door: Door) -> None:
    await prepared(door)
    before = door.node.storage.topics(), await door.get("/v1/topics")
    for body in CONFLICTS:
        await refusals(door, lambda name, body=body: door.call("POST", "/v1/topics", name, body))  # type: ignore[misc]
        known = await door.call("POST", "/v1/topics", "knower", body)
        assert known.status_code in (400, 409), (body, known.text)
        assert any(f"{one}" in known.json()["message"] for one in (HIDDEN, PARTED, LIVE)), known.text
    assert (door.node.storage.topics(), await door.get("/v1/topics")) == before
    assert (await door.call("POST", "/v1/topics", "maker", {"topic": "/shop/free"})).status_code == 201


def test_with_a_full_quota_a_taken_name_is_refused_as_a_free_one(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await prepared(door)
        assert (await door.call("POST", "/v1/topics", "maker", {"topic": "/own/one"})).status_code == 201
        for topic in ("/shop/free", HIDDEN, "/shop/Salaries", f"{PARTED}-part-1", f"{PARTED}-part-2"):
            answer = await door.call("POST", "/v1/topics", "maker", {"topic": topic})
            assert (answer.status_code, answer.json()["error"]) == (429, "quota_exceeded"), (topic, answer.text)
            assert answer.json()["principal"] == f"key:{door.ids['maker']}"

    within(tmp_path, work, quota={"topics": 1})


def test_the_quota_of_who_created_a_hidden_topic_is_not_shown(tmp_path: Path) -> None:
    owner = Principal("jwt:owner")

    async def work(door: Door) -> None:
        await asyncio.to_thread(door.node.bindings(LOCAL).add, owner.name, "admin")
        await door.node.create_topic(owner, TopicName.parse("/shop/parts"), partitions=2)
        await prepared(door)
        body = {"topic": "/shop/parts-part-2"}
        await refusals(door, lambda name: door.call("POST", "/v1/topics", name, body))
        known = await door.call("POST", "/v1/topics", "knower", body)
        assert (known.status_code, known.json()["principal"]) == (429, "the creator of /shop/parts")

    within(tmp_path, work, quotas={owner.name: {"topics": 2}})


def test_the_audit_log_has_what_was_in_the_way(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        await prepared(door)
        assert (await door.call("POST", "/v1/topics", "maker", {"topic": "/shop/Salaries"})).status_code == 403

    within(tmp_path, work)
    lines = [json.loads(line) for line in (tmp_path / "data" / "audit.log").read_text().splitlines()]
    (line,) = [one for one in lines if one["resource"] == "topic /shop/Salaries" and not one["allowed"]]
    assert "differs from /shop/salaries in case alone" in line["reason"]


@run
async def test_a_namespace_and_the_topics_in_it_are_not_shown_either(door: Door) -> None:
    await prepared(door)
    for namespace in ("shop", "empty", "default"):
        body = {"namespace": namespace}
        await refusals(door, lambda name, body=body: door.call("POST", "/v1/namespaces", name, body))  # type: ignore[misc]
        assert (await door.call("POST", "/v1/namespaces", "knower", body)).json()["error"] == "namespace_exists"
    await refusals(door, lambda name: door.call("DELETE", "/v1/namespaces/shop", name))
    assert (await door.call("DELETE", "/v1/namespaces/shop", "knower")).json()["topics"] == 5
    door.allow("some", ("allow", "delete", "namespace", "*"), ("allow", "describe", "topic", "/shop/orders"))
    answer = await door.call("DELETE", "/v1/namespaces/shop", "some")
    assert (answer.status_code, answer.json()["error"], answer.json()["topics"]) == (409, "namespace_in_use", 1)
    assert (await door.call("DELETE", "/v1/namespaces/empty", "maker")).status_code == 200


@run
async def test_a_subject_is_not_shown_by_the_schema_that_does_not_fit(door: Door) -> None:
    await prepared(door)

    def schema(kind: str) -> dict[str, str]:
        return {"schema_type": "json_schema", "definition": json.dumps({"type": "object", "required": [kind]})}

    url = "/v1/schemas/payroll/versions"
    assert (await door.call("POST", url, ADMIN, schema("salary"))).status_code == 201
    await refusals(door, lambda name: door.call("POST", url, name, schema("bonus")))
    known = await door.call("POST", url, "knower", schema("bonus"))
    assert (known.status_code, known.json()["error"]) == (409, "incompatible_schema")
    broken = await door.call("POST", url, "maker", {"schema_type": "json_schema", "definition": "{"})
    assert (broken.status_code, broken.json()["error"]) == (400, "invalid_schema"), "its own mistake"


def within(folder: Path, work: Any, **security: Any) -> None:
    async def inside() -> None:
        async with opened(folder, **security) as door:
            await asyncio.wait_for(work(door), 60)

    asyncio.run(inside())


pytestmark = pytest.mark.timeout(120)

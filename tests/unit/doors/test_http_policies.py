"""Policies over HTTP: whose rights and quota a dead-letter topic needs, and what a refused policy leaves."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from frazil.broker.delivery.assignment import Kind
from frazil.broker.subscriptions.subscription import Subscription
from frazil.broker.topics.topic import OutgoingMessage
from frazil.core.access import Action, Right, subscription, topic
from frazil.core.errors import MetadataUnavailable
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.core.rows import Origin
from frazil.meta.topic_records import creator_key
from frazil.node.access.topic_quotas.creators import Creator
from parts.secured_door import ADMIN, LETTERS, ORDERS, SUBSCRIPTION, Door, opened, run

LOST = "/shop/lost"
POLICY = f"/v1/topics{ORDERS}/subscriptions/{SUBSCRIPTION}/policy"
ALTERING = (Right(Action.DESCRIBE, topic(ORDERS)), Right(Action.ALTER, subscription(ORDERS, SUBSCRIPTION)))
DEFAULT = {"poison": "dead_letter"}
NAMED = {"dead_letter_topic": LOST}


def rights(letters: str, *actions: Action) -> tuple[Right, ...]:
    return (*ALTERING, *(Right(action, topic(letters)) for action in actions))


def creator(door: Door, letters: str = LOST) -> str | None:
    entry = door.node.access_parts(LOCAL).gate.directory.read(creator_key(TopicName.parse(letters)))
    found = None if entry is None else Creator.decode(entry.value)
    return None if found is None else found.principal


async def own_policy(door: Door) -> dict[str, Any]:
    found = (await door.get(POLICY))["policy"]
    return {name: value for name, value in found.items() if value is not None}


@pytest.mark.parametrize(("body", "letters"), [(NAMED, LOST), (DEFAULT, LETTERS)])
def test_a_missing_topic_needs_the_rights_to_publish_and_to_create_and_belongs_to_the_caller(
    tmp_path: Path, body: dict[str, Any], letters: str
) -> None:
    async def work(door: Door) -> None:
        for lacking, action in ((Action.PRODUCE, "produce"), (Action.CREATE, "create")):
            others = {Action.PRODUCE, Action.CREATE, Action.ALTER, Action.DESCRIBE} - {lacking}
            door.add("caller", *rights(letters, *others))
            answer = await door.call("PUT", POLICY, "caller", body)
            assert answer.status_code == 403, answer.text
            assert f"may not {action} the topic '{letters}'" in answer.json()["message"]
            assert (await own_policy(door), door.node.storage.topics(), creator(door, letters)) == ({}, [ORDERS], None)
        door.add("caller", *rights(letters, Action.PRODUCE, Action.CREATE))
        assert (await door.call("PUT", POLICY, "caller", body)).status_code == 200
        assert await own_policy(door) == body
        assert letters in door.node.storage.topics()
        assert creator(door, letters) == f"key:{door.ids['caller']}"

    within(tmp_path, work)


@run
async def test_an_existing_topic_needs_the_right_to_publish_alone(door: Door) -> None:
    await door.node.create_topic(LOCAL, TopicName.parse(LOST))
    door.add("caller", *rights(LOST, Action.PRODUCE))
    assert (await door.call("PUT", POLICY, "caller", NAMED)).status_code == 200
    door.add("operator", *rights(LOST, Action.ALTER, Action.CREATE, Action.DESCRIBE))
    assert (await door.call("PUT", POLICY, "operator", NAMED)).status_code == 403


@run
async def test_a_policy_without_letters_needs_no_right_on_their_topic(door: Door) -> None:
    door.add("caller", *ALTERING)
    for body in ({"redeliveries_max": 3}, {"poison": "drop"}, {}):
        assert (await door.call("PUT", POLICY, "caller", body)).status_code == 200
    assert (await door.call("DELETE", POLICY, "caller")).status_code == 200
    assert door.node.storage.topics() == [ORDERS]


def test_a_topic_beyond_the_quota_is_refused_with_its_policy(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        mine = "/shop/mine"
        door.add("caller", *rights(LOST, Action.PRODUCE, Action.CREATE), Right(Action.CREATE, topic(mine)))
        assert (await door.call("POST", "/v1/topics", "caller", {"topic": mine})).status_code == 201
        answer = await door.call("PUT", POLICY, "caller", NAMED)
        assert (answer.status_code, answer.json()["error"]) == (429, "quota_exceeded")
        assert "quota topics = 1" in answer.json()["message"]
        assert (await own_policy(door), door.node.storage.topics(), creator(door)) == ({}, [mine, ORDERS], None)
        assert (await door.call("DELETE", f"/v1/topics{mine}", ADMIN)).status_code == 200
        assert (await door.call("PUT", POLICY, "caller", NAMED)).status_code == 200
        assert (await door.call("POST", "/v1/topics", "caller", {"topic": mine})).status_code == 429, "it is charged"

    within(tmp_path, work, quota={"topics": 1})


@run
async def test_a_policy_that_is_refused_leaves_no_topic_and_no_charge(door: Door) -> None:
    door.allow(
        "caller",
        *(("allow", str(one.action), str(one.resource.kind), one.resource.name) for one in ALTERING),
        ("allow", "*", "topic", "/shop/*"),
        ("allow", "*", "subscription", "/shop/*"),
    )
    missing = POLICY.replace(SUBSCRIPTION, "missing")
    refused = [
        (POLICY, {**NAMED, "redelivery_delay_ms": 60_001, "redelivery_delay_ms_max": 1}, 400),
        (POLICY, {**NAMED, "max_unacked_messages": 0}, 400),
        (POLICY, {"dead_letter_topic": f"{ORDERS}-part-0"}, 400),
        (missing, NAMED, 404),
        (missing.replace(ORDERS, "/shop/nothing"), NAMED, 404),
    ]
    for url, body, status in refused:
        answer = await door.call("PUT", url, "caller", body)
        assert answer.status_code == status, answer.text
        assert (await own_policy(door), door.node.storage.topics(), creator(door)) == ({}, [ORDERS], None), body
    store = door.node.broker(LOCAL).identities._meta
    with mock.patch.object(store, "put_if", side_effect=MetadataUnavailable("etcd", "it does not answer")):
        assert (await door.call("PUT", POLICY, "caller", NAMED)).status_code == 503
    assert (await own_policy(door), door.node.storage.topics(), creator(door)) == ({}, [ORDERS], None)
    assert (await door.call("PUT", POLICY, "caller", NAMED)).status_code == 200


@run
async def test_callers_that_set_policies_at_once_create_the_topic_once(door: Door) -> None:
    names = [f"caller{number}" for number in range(4)]
    for name in names:
        door.add(name, *rights(LOST, Action.PRODUCE, Action.CREATE, Action.DESCRIBE))
    answers = await asyncio.gather(*(door.call("PUT", POLICY, name, NAMED) for name in names))
    assert [one.status_code for one in answers] == [200] * 4, [one.text for one in answers]
    assert door.node.storage.topics() == [LOST, ORDERS]
    assert creator(door) in {f"key:{door.ids[name]}" for name in names}


@run
async def test_a_server_with_security_does_not_create_a_deleted_topic_again(door: Door) -> None:
    body = {**NAMED, **DEFAULT, "redeliveries_max": 0}
    assert (await door.call("PUT", POLICY, ADMIN, body)).status_code == 200
    assert (await door.call("DELETE", f"/v1/topics{LOST}", ADMIN)).status_code == 200
    broker = door.node.broker(LOCAL)
    producer = await broker.create_producer(ORDERS, "p", reliable=True)
    _, found, _, stream = broker.connect(await broker.subscribe(ORDERS, SUBSCRIPTION, Kind.SHARED, "c"))
    assert isinstance(found, Subscription)
    await producer.topic.publish(OutgoingMessage(b"bad", None, {}, Origin("p", 1)))
    await stream.take()
    found.nack(0, 0, "no")
    for _ in range(1_000):
        if found.counts.letters_failed or found.cursor.end:
            break
        await asyncio.sleep(0.01)
    assert (found.counts.letters_failed, found.cursor.end, door.node.storage.topics()) == (1, 0, [ORDERS])


def test_the_audit_log_has_the_topic_and_the_address_of_the_caller(tmp_path: Path) -> None:
    async def work(door: Door) -> None:
        door.add("caller", *rights(LOST, Action.PRODUCE))
        assert (await door.call("PUT", POLICY, "caller", NAMED)).status_code == 403
        door.add("caller", *rights(LOST, Action.PRODUCE, Action.CREATE))
        assert (await door.call("PUT", POLICY, "caller", NAMED)).status_code == 200

    within(tmp_path, work)
    lines = [json.loads(line) for line in (tmp_path / "data" / "audit.log").read_text().splitlines()]
    created = [one for one in lines if (one["action"], one["resource"]) == ("create", f"topic {LOST}")]
    assert [(one["allowed"], one["from"]) for one in created] == [(False, "10.1.2.3:4711"), (True, "10.1.2.3:4711")]


def within(folder: Path, work: Any, **security: Any) -> None:
    async def inside() -> None:
        async with opened(folder, **security) as door:
            await asyncio.wait_for(work(door), 60)

    asyncio.run(inside())

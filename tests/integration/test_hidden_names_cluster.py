"""A topic that another broker owns is not named to a caller that may create it, and not describe it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import grpc
import httpx
import pyarrow.flight as fl
import pytest

from frazil.core.names import TopicName
from frazil.core.principal import LOCAL
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from parts.cluster import Brokers, brokers

HIDDEN, PARTS, WAITING = "/shop/salaries", "/shop/parts", "/shop/waiting"
"""Topics of the broker `a`: one, one with a partition at each broker, and one that nobody serves now."""
ALLOWED = [{"effect": "allow", "actions": ["create"], "kind": "topic"}]
OTHER = [{"effect": "allow", "actions": ["read"], "kind": "topic", "pattern": "/none/none"}]
KNOWING = [{"effect": "allow", "actions": ["create", "describe"], "kind": "topic"}]

Call = Callable[[str], str]
"""Makes a creation with a key at the broker `b`; returns the refusal."""


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Brokers]:
    with brokers(tmp_path / "data", security={"enabled": True}) as found:
        for name, owner in ((HIDDEN, "a"), (f"{PARTS}-part-0", "a"), (f"{PARTS}-part-1", "b"), (WAITING, "a")):
            found.node.storage.create_topic(name)
            found.cluster.give(name, owner)
        found.cluster.unavailable[TopicName.parse(WAITING)] = "its broker is gone"
        yield found


def key(two: Brokers, role: str, rules: list[dict[str, object]]) -> str:
    record, secret = two.node.keys(LOCAL).create("tests")
    two.node.roles(LOCAL).put(role, rules)
    two.node.bindings(LOCAL).add(record.principal, role)
    return secret


def over_http(two: Brokers, body: dict[str, object]) -> Call:
    def call(secret: str) -> str:
        headers = {"authorization": f"Bearer {secret}"}
        return httpx.post(f"{two['b'].http}/v1/topics", json=body, headers=headers, timeout=20).text

    return call


def over_flight(two: Brokers, action: str, body: dict[str, object]) -> Call:
    def call(secret: str) -> str:
        options = fl.FlightCallOptions(headers=[(b"authorization", f"Bearer {secret}".encode())], timeout=20)
        with fl.connect(two["b"].flight) as client, pytest.raises(fl.FlightError) as refused:
            list(client.do_action((action, json.dumps(body).encode()), options))
        return f"{type(refused.value).__name__} {refused.value.extra_info!r}"

    return call


def over_admin(two: Brokers, topic: str) -> Call:
    def call(secret: str) -> str:
        with grpc.insecure_channel(two["b"].admin.removeprefix("http://")) as channel:
            create = channel.unary_unary("/danube_admin.TopicAdmin/CreateTopic", pb.NewTopicRequest.SerializeToString)
            asked = pb.NewTopicRequest(name=topic, dispatch_strategy=pb.Reliable)
            with pytest.raises(grpc.RpcError) as refused:
                create(asked, metadata=[("authorization", f"Bearer {secret}")], timeout=20)
        return f"{refused.value.code()} {refused.value.details()}"

    return call


def creations(two: Brokers) -> Iterator[tuple[str, Call]]:
    for topic in (HIDDEN, PARTS, WAITING):
        yield f"HTTP {topic}", over_http(two, {"topic": topic})
        yield f"HTTP {topic} with partitions", over_http(two, {"topic": topic, "partitions": 2})
        yield f"create_topic {topic}", over_flight(two, "create_topic", {"topic": topic})
        yield f"create_partitions {topic}", over_flight(two, "create_partitions", {"topic": topic, "partitions": 2})
        yield f"CreateTopic {topic}", over_admin(two, topic)
    yield "a partition", over_http(two, {"topic": f"{PARTS}-part-0"})
    yield "a partition over Flight", over_flight(two, "create_topic", {"topic": f"{PARTS}-part-0"})


def test_a_creation_does_not_tell_of_a_hidden_topic_of_another_broker(two: Brokers) -> None:
    maker, denied = key(two, "maker", ALLOWED), key(two, "denied", OTHER)
    for what, call in creations(two):
        allowed, refused = (call(secret).replace(secret.split("_")[1], "ID") for secret in (maker, denied))
        assert "permission" in refused.lower(), what
        assert allowed == refused, what
    assert over_http(two, {"topic": "/shop/free"})(maker).startswith('{"topic":"/shop/free"')


def test_a_creation_by_a_caller_that_knows_the_topic_is_sent_to_its_owner(two: Brokers) -> None:
    knower = key(two, "knower", KNOWING)
    assert '"not_owner"' in over_http(two, {"topic": HIDDEN})(knower)
    assert "not_owner" in over_flight(two, "create_topic", {"topic": HIDDEN})(knower)
    assert '"partitions_elsewhere"' in over_http(two, {"topic": PARTS, "partitions": 2})(knower)
    assert '"topic_unavailable"' in over_http(two, {"topic": WAITING})(knower)

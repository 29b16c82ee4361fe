"""Several brokers with security and TLS: callers are known at each, and their credentials go nowhere else."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import grpc
import httpx
import pyarrow as pa
import pyarrow.flight
import pytest

import frazil
from frazil.broker.delivery.assignment import Kind
from frazil.client.opening import open_client
from frazil.core.credentials import ClientCredentials
from frazil.core.principal import LOCAL
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from frazil.node.access.local_token import read_local_token
from frazil.node.node import Node
from frazil.node.tiers.cluster_logs import ForwardedCaller
from parts.certificates import Certificates, certificates
from parts.cluster import Brokers, brokers

TOPIC = "/default/orders"


@pytest.fixture
def made(tmp_path: Path) -> Certificates:
    return certificates(tmp_path / "certificates")


@pytest.fixture
def two(tmp_path: Path, made: Certificates) -> Iterator[Brokers]:
    sections = {"security": {"enabled": True, "tls": made.tls()}, "client": {"ca": str(made.ca)}}
    with brokers(tmp_path / "data", **sections) as found:
        found.node.storage.create_topic(TOPIC)
        found.cluster.give(TOPIC, "a")
        yield found


def key(two: Brokers, *bindings: tuple[str, str]) -> str:
    record, secret = two.node.keys(LOCAL).create("tests")
    for role, scope in bindings:
        two.node.bindings(LOCAL).add(record.principal, role, scope)
    return secret


def admin(two: Brokers, made: Certificates, name: str) -> grpc.Channel:
    credentials = grpc.ssl_channel_credentials(made.ca.read_bytes())
    return grpc.secure_channel(two[name].admin.removeprefix("https://"), credentials)


def test_a_client_follows_a_topic_with_its_credentials_over_tls(two: Brokers, made: Certificates) -> None:
    with frazil.connect(two["b"].flight, token=key(two, ("admin", "*")), ca=made.ca) as client:
        topic = client.topic(TOPIC)
        assert topic.publish("first") == 0
        two.cluster.give(TOPIC, "b")
        assert topic.publish("second") == 1
        assert [message.payload for message in topic.read()] == [b"first", b"second"]


def test_a_broker_that_is_announced_without_tls_is_not_called(two: Brokers, made: Certificates) -> None:
    with frazil.connect(two["b"].flight, token=key(two, ("admin", "*")), ca=made.ca) as client:
        two.cluster.addresses["a"] = {"flight": "grpc://127.0.0.1:1"}
        with pytest.raises(frazil.InvalidInput, match=r"the broker a is at grpc://127\.0\.0\.1:1, without TLS"):
            client.topic(TOPIC)


def test_who_may_not_describe_a_topic_does_not_learn_who_owns_it(two: Brokers, made: Certificates) -> None:
    nobody, elsewhere = key(two), key(two, ("admin", "/other/*"))
    for token in (nobody, elsewhere):
        headers = {"authorization": f"Bearer {token}"}
        for path in ("", "/owner", "/retention"):
            answer = httpx.get(f"{two['b'].http}/v1/topics{TOPIC}{path}", headers=headers)
            assert (answer.status_code, answer.json()["error"]) == (403, "permission_denied"), path
        assert "orders" not in httpx.get(f"{two['b'].http}/v1/topics", headers=headers).text
        with frazil.connect(two["b"].flight, token=token, ca=made.ca) as client:
            assert client.topics() == []
            with pytest.raises(frazil.PermissionDenied):
                client.topic(TOPIC, create=False)


def test_the_admin_service_forwards_with_the_token_of_its_caller(two: Brokers, made: Certificates) -> None:
    with admin(two, made, "b") as channel:
        call = channel.unary_unary(
            "/danube_admin.TopicAdmin/DescribeTopic",
            pb.DescribeTopicRequest.SerializeToString,
            pb.DescribeTopicResponse.FromString,
        )
        given = [("authorization", f"Bearer {key(two, ('admin', '*'))}")]
        assert call(pb.DescribeTopicRequest(name=TOPIC), metadata=given, timeout=20).name == TOPIC
        given = [("authorization", f"Bearer {key(two, ('admin', '/other/*'))}")]
        with pytest.raises(grpc.RpcError) as refused:
            call(pb.DescribeTopicRequest(name=TOPIC), metadata=given, timeout=20)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED


def test_the_admin_service_keeps_the_token_of_its_host_to_itself(two: Brokers, made: Certificates) -> None:
    local = read_local_token(two.node.settings.data)
    with admin(two, made, "b") as channel:
        call = channel.unary_unary("/danube_admin.TopicAdmin/DescribeTopic", pb.DescribeTopicRequest.SerializeToString)
        given = [("authorization", f"Bearer {local}")]
        with pytest.raises(grpc.RpcError) as refused:
            call(pb.DescribeTopicRequest(name=TOPIC), metadata=given, timeout=20)
        assert "owned by the broker a" in refused.value.details()
        two.cluster.give(TOPIC, "b")
        assert call(pb.DescribeTopicRequest(name=TOPIC), metadata=given, timeout=20)


def test_the_admin_service_sends_no_token_to_a_broker_without_tls(two: Brokers, made: Certificates) -> None:
    two.cluster.addresses["a"] = {"admin": "http://127.0.0.1:1"}
    with admin(two, made, "b") as channel:
        call = channel.unary_unary("/danube_admin.TopicAdmin/DescribeTopic", pb.DescribeTopicRequest.SerializeToString)
        given = [("authorization", f"Bearer {key(two, ('admin', '*'))}")]
        with pytest.raises(grpc.RpcError) as refused:
            call(pb.DescribeTopicRequest(name=TOPIC), metadata=given, timeout=20)
    assert (refused.value.code(), "owned by the broker a" in refused.value.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        True,
    )


def test_a_query_goes_on_to_other_brokers_with_the_token_of_its_caller_alone(two: Brokers, made: Certificates) -> None:
    secret, local = key(two, ("reader", "*")), read_local_token(two.node.settings.data)
    seen: list[ForwardedCaller | None] = []

    def query(*_: object, forwarded: ForwardedCaller | None, **__: object) -> None:
        seen.append(forwarded)
        raise frazil.InvalidInput("the query is not run")

    with mock.patch.object(Node, "query", query):
        for token in (secret, local):
            credentials = ClientCredentials(token=token, ca=made.ca.read_bytes())
            with (
                contextlib.closing(open_client(two["b"].flight, credentials)) as client,
                pytest.raises(pa.flight.FlightError, match="not run"),
            ):
                client.do_get(pa.flight.Ticket(b'{"sql": {"query": "select 1"}}')).read_all()
    assert seen == [ForwardedCaller(secret, needs_tls=True), None]


def test_a_policy_needs_no_right_to_create_a_dead_letter_topic_that_another_broker_has(two: Brokers) -> None:
    node, letters = two.node, f"{TOPIC}-dead-letter"
    two.cluster.give(letters, "b")
    two.run(node.broker(LOCAL).make_known(TOPIC))
    two.run(node.subscribe(LOCAL, TOPIC, "billing", Kind.SHARED, "c"))
    allowed = {"actions": ["describe", "alter"], "kind": "*", "pattern": f"{TOPIC}*"}
    node.roles(LOCAL).put("owner", [allowed, {"actions": ["produce"], "kind": "topic", "pattern": letters}])
    headers = {"authorization": f"Bearer {key(two, ('owner', '*'))}"}
    path = f"/v1/topics{TOPIC}/subscriptions/billing/policy"

    def answer(policy: dict[str, str]) -> tuple[int, str | None]:
        found = httpx.put(two["a"].http + path, json=policy, headers=headers, timeout=20)
        return found.status_code, found.json().get("action")

    assert answer({"poison": "dead_letter"}) == (200, None)
    assert answer({"poison": "dead_letter", "dead_letter_topic": "/default/other"}) == (403, "produce")
    node.roles(LOCAL).put("owner", [allowed, {"actions": ["produce"], "kind": "topic"}])
    assert answer({"poison": "dead_letter", "dead_letter_topic": "/default/other"}) == (403, "create")


def test_a_move_needs_the_right_to_operate_the_server_on_every_door(two: Brokers, made: Certificates) -> None:
    tenant, operator = key(two, ("admin", "/default/*")), key(two, ("operator", "*"))
    path = f"{two['b'].http}/v1/topics{TOPIC}/move"
    with admin(two, made, "b") as channel:
        unload = channel.unary_unary("/danube_admin.TopicAdmin/UnloadTopic", pb.TopicRequest.SerializeToString)
        with pytest.raises(grpc.RpcError) as refused:
            unload(pb.TopicRequest(name=TOPIC), metadata=[("authorization", f"Bearer {tenant}")], timeout=20)
        assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
        assert httpx.post(path, json={}, headers={"authorization": f"Bearer {tenant}"}).status_code == 403
        assert two.cluster.moves == []
        unload(pb.TopicRequest(name=TOPIC), metadata=[("authorization", f"Bearer {operator}")], timeout=20)
        assert httpx.post(path, json={}, headers={"authorization": f"Bearer {operator}"}).status_code == 200
    assert [topic for topic, *_ in two.cluster.moves] == [TOPIC, TOPIC]

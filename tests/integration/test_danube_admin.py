"""Danube's admin service of a real `frazil serve`, by stubs from its protocol, beside HTTP and stock clients."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from danube.consumer import SubType
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from frazil.cli.main import main
from frazil.core.settings import Settings
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from parts.danube import Server, connect, producer, serving, subscriber
from parts.movers import environment

pytestmark = pytest.mark.timeout(180)

Call = Callable[..., Any]
SERVICES = pb.DESCRIPTOR.services_by_name


class Admin:
    """Calls of all services by their names: `admin("CreateTopic", name=…)`."""

    def __init__(self, url: str) -> None:
        self.channel = grpc.insecure_channel(url.removeprefix("http://"))
        self._methods = {method.name: method for service in SERVICES.values() for method in service.methods}

    def __call__(self, name: str, /, **fields: Any) -> Any:
        method = self._methods[name]
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        call = self.channel.unary_unary(
            f"/{method.containing_service.full_name}/{name}", request.SerializeToString, response.FromString
        )
        return call(request(**fields), timeout=30)

    def refused(self, name: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
        with pytest.raises(grpc.RpcError) as error:
            self(name, **fields)
        return error.value.code(), error.value.details()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("admin"), redelivery_delay_ms=20) as found:
        yield found
        assert "Traceback" not in found.log()


@pytest.fixture
def admin(server: Server) -> Iterator[Admin]:
    made = Admin(server.admin)
    with made.channel:
        yield made


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"/default/{request.node.name.split('[')[0][5:85]}"


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


def get(server: Server, path: str) -> Any:
    answer = httpx.get(server.http + path, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_only_broker_is_listed_and_leads(server: Server, admin: Admin) -> None:
    (broker,) = admin("ListBrokers").brokers
    assert (broker.broker_id, broker.broker_role, broker.broker_status) == ("1", "Cluster_Leader", "active")
    assert (broker.broker_addr, broker.admin_addr) == (server.url, server.admin)
    assert f"http://{broker.metrics_addr}" == server.http
    assert admin("GetLeaderBroker").leader == "1"
    status = admin("ClusterStatus")
    assert (status.leader_id, status.self_node_id, list(status.voters), list(status.learners)) == (1, 1, [1], [])
    assert (status.current_term, status.last_applied, status.raft_addr) == (0, 0, "")
    assert get(server, "/v1/server")["admin"] == server.admin


def test_topics_are_made_listed_described_and_deleted(server: Server, admin: Admin, topic: str) -> None:
    live = f"{topic}-live"
    assert admin("CreateTopic", name=topic, dispatch_strategy=pb.Reliable).success
    assert admin("CreateTopic", name=live, dispatch_strategy=pb.NonReliable).success
    wanted = {topic: "Reliable", live: "NonReliable"}
    for call, fields in (("ListNamespaceTopics", {"name": "default"}), ("ListBrokerTopics", {"broker_id": "1"})):
        found = {one.name: one for one in admin(call, **fields).topics}
        assert {name: found[name].delivery for name in wanted} == wanted
        assert {one.broker_id for one in found.values()} == {"1"}
    assert topic in admin("GetNamespaceTopics", name="default").topics
    assert get(server, f"/v1/topics{topic}")["reliable"]
    described = admin("DescribeTopic", name=topic)
    assert (described.name, described.broker_id, described.delivery) == (topic, "1", "Reliable")
    assert list(described.subscriptions) == []
    assert not described.HasField("schema_subject")
    balance = admin("GetClusterBalance")
    assert balance.broker_count == 1
    assert balance.max_load == balance.min_load == len(admin("ListBrokerTopics", broker_id="1").topics)
    assert admin.refused("CreateTopic", name=topic, dispatch_strategy=pb.Reliable)[0] is grpc.StatusCode.ALREADY_EXISTS
    code, why = admin.refused("UnloadTopic", name=topic)
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert "only broker" in why
    for name in (topic, live):
        assert admin("DeleteTopic", name=name).success
        for call in ("DeleteTopic", "DescribeTopic", "UnloadTopic", "ListSubscriptions"):
            assert admin.refused(call, name=name)[0] is grpc.StatusCode.NOT_FOUND
    assert topic not in admin("GetNamespaceTopics", name="default").topics


def test_a_partitioned_topic_is_one_that_clients_use_and_goes_whole(server: Server, admin: Admin, topic: str) -> None:
    admin("CreatePartitionedTopic", base_name=topic, partitions=3, dispatch_strategy=pb.Reliable)
    names = [f"{topic}-part-{number}" for number in range(3)]
    assert set(names) <= set(admin("GetNamespaceTopics", name="default").topics)

    async def work() -> None:
        client = await connect(server)
        async with subscriber(client, "c", SubType.SHARED, topic=topic) as receiver:
            sender = await producer(client, topic, partitions=3)
            await sender.send(b"tea")
            assert await receiver.texts(1) == ["tea"]

    run(work())
    assert list(admin("ListSubscriptions", name=topic).subscriptions) == ["s"]
    code, why = admin.refused("CreatePartitionedTopic", base_name=f"{topic}2", partitions=0)
    assert (code, "partitions" in why) == (grpc.StatusCode.INVALID_ARGUMENT, True)
    assert admin("DeleteTopic", name=topic).success, "with its subscriptions, as Danube does it"
    assert not set(names) & set(admin("GetNamespaceTopics", name="default").topics)


def test_a_topic_has_the_subject_it_was_made_with_or_is_not_made(server: Server, admin: Admin, topic: str) -> None:
    code, _ = admin.refused("CreateTopic", name=topic, schema_subject="nothing", dispatch_strategy=pb.Reliable)
    assert code is grpc.StatusCode.NOT_FOUND
    assert topic not in admin("GetNamespaceTopics", name="default").topics
    made = httpx.post(
        f"{server.http}/v1/schemas/tea/versions", json={"schema_type": "string", "definition": "string"}, timeout=30
    )
    assert made.status_code == 201, made.text
    admin("CreateTopic", name=topic, schema_subject="tea", dispatch_strategy=pb.Reliable)
    found = admin("DescribeTopic", name=topic)
    assert (found.schema_subject, found.schema_version, found.schema_type) == ("tea", 1, "string")
    assert (found.schema_id, found.compatibility_mode) == (made.json()["schema_id"], "backward")


def test_policies_are_those_of_http_and_outlive_a_crash(tmp_path: Path) -> None:
    topic = "/default/orders"
    name = {"topic": topic, "subscription": "s"}
    with serving(tmp_path) as server:
        admin = Admin(server.admin)
        run(subscribed(server, topic))
        before = admin("GetSubscriptionFailurePolicy", **name)
        assert before.subscription_type == 1
        assert before.failure_policy == pb.SubscriptionFailurePolicy(
            max_redelivery_count=5, ack_timeout_ms=30_000, base_redelivery_delay_ms=1_000,
            max_redelivery_delay_ms=60_000, backoff_strategy=pb.Exponential, poison_policy=pb.Block,
        )  # fmt: skip
        wanted = pb.SubscriptionFailurePolicy(
            max_redelivery_count=2, ack_timeout_ms=5_000, base_redelivery_delay_ms=10, max_redelivery_delay_ms=20,
            backoff_strategy=pb.Fixed, dead_letter_topic="/default/returned", poison_policy=pb.DeadLetter,
        )  # fmt: skip
        assert admin("SetSubscriptionFailurePolicy", **name, failure_policy=wanted).success
        assert admin("SetSubscriptionDispatchConfig", **name, dispatch_config={"max_unacked_messages": 3}).success
        own = get(server, f"/v1/topics{topic}/subscriptions/s/policy")["policy"]
        assert own == {
            "max_unacked_messages": 3, "max_unacked_bytes": None, "ack_timeout_ms": 5_000, "redeliveries_max": 2,
            "redelivery_delay_ms": 10, "redelivery_delay_ms_max": 20, "backoff": "fixed", "poison": "dead_letter",
            "dead_letter_topic": "/default/returned",
        }  # fmt: skip
        for fields, said in (
            ({"ack_timeout_ms": 0}, "ack_timeout_ms: must be 1 to 86400000"),
            ({"max_redelivery_count": 2**32 - 1}, "max_redelivery_count: must be 0 to 1000000"),
            (
                {"base_redelivery_delay_ms": 21},
                "base_redelivery_delay_ms: must not be above max_redelivery_delay_ms = 20",
            ),
            ({"dead_letter_topic": topic}, "dead_letter_topic: must not be /default/orders itself"),
            ({"dead_letter_topic": "x"}, "dead_letter_topic: "),
            ({"poison_policy": 3}, "poison_policy: must be 0 to 2"),
        ):
            wrong = pb.SubscriptionFailurePolicy()
            wrong.CopyFrom(wanted)
            wrong.MergeFrom(pb.SubscriptionFailurePolicy(**fields))
            for field in fields:
                setattr(wrong, field, fields[field])
            code, why = admin.refused("SetSubscriptionFailurePolicy", **name, failure_policy=wrong)
            assert (code, why.startswith(said)) == (grpc.StatusCode.INVALID_ARGUMENT, True), why
        code, why = admin.refused("SetSubscriptionDispatchConfig", **name, dispatch_config={})
        assert (code, "1 to 10000" in why) == (grpc.StatusCode.INVALID_ARGUMENT, True)
        assert admin.refused("SetSubscriptionFailurePolicy", **name)[0] is grpc.StatusCode.INVALID_ARGUMENT
        server.kill()
        server.start()
        admin = Admin(server.admin)
        assert admin("GetSubscriptionFailurePolicy", **name).failure_policy == wanted
        assert admin("GetSubscriptionDispatchConfig", **name).dispatch_config.max_unacked_messages == 3
        assert admin("Unsubscribe", **name).success
        assert list(admin("ListSubscriptions", name=topic).subscriptions) == []
        for call in ("GetSubscriptionFailurePolicy", "GetSubscriptionDispatchConfig", "Unsubscribe"):
            assert admin.refused(call, **name)[0] is grpc.StatusCode.NOT_FOUND


async def subscribed(server: Server, topic: str, *, reliable: bool = True) -> None:
    client = await connect(server)
    await producer(client, topic, reliable=reliable)
    async with subscriber(client, "c", SubType.SHARED, topic=topic):
        pass


def test_a_non_reliable_topic_has_no_policies(server: Server, admin: Admin, topic: str) -> None:
    run(subscribed(server, topic, reliable=False))
    name = {"topic": topic, "subscription": "s"}
    found = admin("GetSubscriptionFailurePolicy", **name)
    assert (found.HasField("failure_policy"), found.subscription_type) == (False, 1)
    assert not admin("GetSubscriptionDispatchConfig", **name).HasField("dispatch_config")
    code, _ = admin.refused("SetSubscriptionDispatchConfig", **name, dispatch_config={"max_unacked_messages": 3})
    assert code is grpc.StatusCode.FAILED_PRECONDITION


def test_namespaces_are_those_of_http_and_of_the_verbs(server: Server, capsys: pytest.CaptureFixture[str]) -> None:
    def verb(*words: str) -> tuple[int, str]:
        code = main(["namespaces", *words, "--json", "--data", str(server.folder / "data")])
        return code, capsys.readouterr().out

    assert verb("create", "fair") == (0, '{"namespace": "fair"}\n')
    assert "fair" in get(server, "/v1/namespaces")["items"]
    assert "fair" in json.loads(verb("list")[1])
    assert verb("create", "fair")[0] != 0
    path = f"{server.http}/v1/namespaces"
    again = httpx.post(path, json={"namespace": "fair"}, timeout=30)
    assert (again.status_code, again.json()["error"]) == (409, "namespace_exists")
    wrong = httpx.post(path, json={"namespace": "a/b"}, timeout=30)
    assert (wrong.status_code, wrong.json()["field"]) == (400, "namespace")
    made = httpx.post(f"{server.http}/v1/topics", json={"topic": "/fair/orders"}, timeout=30)
    assert made.status_code == 201
    in_use = httpx.delete(f"{path}/fair", timeout=30)
    assert (in_use.status_code, in_use.json()["topics"]) == (409, 1)
    assert httpx.delete(f"{server.http}/v1/topics/fair/orders", timeout=30).status_code == 200
    assert verb("delete", "fair") == (0, '{"namespace": "fair", "deleted": true}\n')
    gone = httpx.delete(f"{path}/fair", timeout=30)
    assert (gone.status_code, gone.json()["error"]) == (404, "namespace_not_found")


def test_namespaces_are_made_and_deleted_when_they_are_empty(admin: Admin) -> None:
    assert "default" in admin("ListNamespaces").namespaces
    assert admin("CreateNamespace", name="shop").success
    assert "shop" in admin("ListNamespaces").namespaces
    assert admin.refused("CreateNamespace", name="shop")[0] is grpc.StatusCode.ALREADY_EXISTS
    policies = json.loads(admin("GetNamespacePolicies", name="shop").policies)
    assert policies["max_message_size"] == Settings().wal.message_bytes_max
    assert {value for name, value in policies.items() if name != "max_message_size"} == {0}
    admin("CreateTopic", name="/shop/orders", dispatch_strategy=pb.NonReliable)
    code, why = admin.refused("DeleteNamespace", name="shop")
    assert (code, "1 topic" in why) == (grpc.StatusCode.FAILED_PRECONDITION, True)
    admin("DeleteTopic", name="/shop/orders")
    assert "shop" in admin("ListNamespaces").namespaces, "it was made, and stays without topics"
    assert admin("DeleteNamespace", name="shop").success
    assert "shop" not in admin("ListNamespaces").namespaces
    for call in ("DeleteNamespace", "GetNamespacePolicies"):
        assert admin.refused(call, name="shop")[0] is grpc.StatusCode.NOT_FOUND
    assert admin.refused("DeleteNamespace", name="default")[0] is grpc.StatusCode.INVALID_ARGUMENT
    for bad in ("", "..", "a/b", "a\nb"):
        assert admin.refused("CreateNamespace", name=bad)[0] is grpc.StatusCode.INVALID_ARGUMENT
    assert list(admin("GetNamespaceTopics", name="nothing").topics) == []


def test_what_has_no_meaning_is_refused_with_the_reason(admin: Admin) -> None:
    answered = {"ListBrokers", "GetLeaderBroker", "ListNamespaces", "GetClusterBalance", "ClusterStatus"}
    needs_another = {"UnloadBroker": {"broker_id": "1"}, "ActivateBroker": {"broker_id": "1"}, "TriggerRebalance": {}}
    for name, fields in needs_another.items():
        code, why = admin.refused(name, **fields)
        assert (code, "no other broker" in why) == (grpc.StatusCode.FAILED_PRECONDITION, True), name
    assert admin.refused("ListBrokerTopics", broker_id="2")[0] is grpc.StatusCode.NOT_FOUND
    refused = [
        method.name
        for name in ("BrokerAdmin", "ClusterAdmin", "SecurityAdmin")
        for method in SERVICES[name].methods
        if method.name not in answered | needs_another.keys()
    ]
    assert len(refused) == 12
    for name in refused:
        code, why = admin.refused(name)
        assert code is grpc.StatusCode.UNIMPLEMENTED
        assert why.startswith(f"{name} is not supported: ")


def test_it_has_health_and_reflection(admin: Admin) -> None:
    health = health_pb2_grpc.HealthStub(admin.channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
    assert health.status == health_pb2.HealthCheckResponse.SERVING
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    (answer,) = reflection_pb2_grpc.ServerReflectionStub(admin.channel).ServerReflectionInfo(iter([asked]), timeout=30)
    names = {one.name for one in answer.list_services_response.service}
    assert {f"danube_admin.{name}" for name in SERVICES} <= names


def test_a_default_port_that_is_taken_gives_way_and_one_that_was_set_does_not(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # another server of this host has it already
            stack.enter_context(socket.create_server(("127.0.0.1", 50051)))
        words = [sys.executable, "-m", "frazil", "serve", "--no-pipeline", "--json", "--data", str(tmp_path)]
        words += ["--port", "0", "--flight-port", "0", "--broker-port", "0"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment()) as process:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            assert Admin(found["admin"])("GetLeaderBroker").leader == "1"
            process.terminate()
            _, said = process.communicate(timeout=30)
        assert not found["admin"].endswith(":50051")
        assert b"choose another port with --admin-port" in said
        taken = stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
        done = subprocess.run(
            [*words, "--admin-port", str(taken)], capture_output=True, text=True, env=environment(), timeout=60
        )
        assert done.returncode != 0
        assert f"cannot listen on 127.0.0.1:{taken}" in done.stderr
        assert "--admin-port or broker.admin_port" in done.stderr

"""Danube's admin service of several brokers: any of them answers, also for topics of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message_factory import GetMessageClass

from frazil.core.cluster import broker_number
from frazil.core.names import TopicName
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from parts.cluster import Brokers, brokers

TOPIC, PARTS = "/default/orders", "/default/parts"
A, B = str(broker_number("a")), str(broker_number("b"))
METHODS = {method.name: method for one in pb.DESCRIPTOR.services_by_name.values() for method in one.methods}

Call = Callable[..., Any]


def admin_of(channel: grpc.Channel) -> Call:
    def call(name: str, /, **fields: Any) -> Any:
        method = METHODS[name]
        request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
        path = f"/{method.containing_service.full_name}/{name}"
        return channel.unary_unary(path, request.SerializeToString, response.FromString)(request(**fields), timeout=30)

    return call


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Brokers]:
    with brokers(tmp_path / "data") as found:
        yield found


@pytest.fixture
def at_b(two: Brokers) -> Iterator[Call]:
    """Calls at a broker that does not own the topic."""
    with grpc.insecure_channel(two["b"].admin.removeprefix("http://")) as channel:
        call = admin_of(channel)
        call("CreateTopic", name=TOPIC, dispatch_strategy=pb.Reliable)
        call("CreatePartitionedTopic", base_name=PARTS, partitions=2, dispatch_strategy=pb.Reliable)
        two.cluster.give(TOPIC, "a")
        two.cluster.give(f"{PARTS}-part-0", "a")
        two.cluster.give(f"{PARTS}-part-1", "b")
        yield call


def refused(call: Call, name: str, /, **fields: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as error:
        call(name, **fields)
    return error.value.code(), error.value.details()


def test_all_brokers_are_listed_with_their_leader(two: Brokers, at_b: Call) -> None:
    found = {one.broker_id: one for one in at_b("ListBrokers").brokers}
    assert set(found) == {A, B}
    assert (found[A].broker_role, found[B].broker_role) == ("Cluster_Leader", "Cluster_Follower")
    assert (found[A].broker_addr, found[A].admin_addr) == (two["a"].danube, two["a"].admin)
    assert f"http://{found[B].metrics_addr}" == two["b"].http
    assert at_b("GetLeaderBroker").leader == A
    status = at_b("ClusterStatus")
    assert (str(status.leader_id), str(status.self_node_id)) == (A, B)
    assert set(map(str, status.voters)) == {A, B}
    two.kill("a")
    assert {one.broker_id: one.broker_status for one in at_b("ListBrokers").brokers} == {A: "gone", B: "active"}
    assert list(map(str, at_b("ClusterStatus").voters)) == [B]


def test_topics_are_listed_by_broker(at_b: Call) -> None:
    def names(broker: str) -> list[str]:
        return [one.name for one in at_b("ListBrokerTopics", broker_id=broker).topics]

    assert names(A) == names("a") == [TOPIC, f"{PARTS}-part-0"]
    assert names(B) == [f"{PARTS}-part-1"]
    assert refused(at_b, "ListBrokerTopics", broker_id="7")[0] is grpc.StatusCode.NOT_FOUND
    assert refused(at_b, "ListBrokerTopics")[0] is grpc.StatusCode.INVALID_ARGUMENT
    found = {one.name: one.broker_id for one in at_b("ListNamespaceTopics", name="default").topics}
    assert found == {TOPIC: A, f"{PARTS}-part-0": A, f"{PARTS}-part-1": B}


def test_calls_for_topics_of_other_brokers_are_answered_by_their_owner(two: Brokers, at_b: Call) -> None:
    described = at_b("DescribeTopic", name=TOPIC)
    assert (described.name, described.broker_id) == (TOPIC, A)
    assert list(at_b("ListSubscriptions", name=TOPIC).subscriptions) == []
    code, why = refused(at_b, "Unsubscribe", topic=TOPIC, subscription="nothing")
    assert (code, "nothing" in why) == (grpc.StatusCode.NOT_FOUND, True)
    two.cluster.unavailable[TopicName.parse(TOPIC)] = "its broker is gone"
    code, why = refused(at_b, "DescribeTopic", name=TOPIC)
    assert (code, "its broker is gone" in why) == (grpc.StatusCode.UNAVAILABLE, True)
    two.cluster.unavailable.clear()
    assert at_b("DeleteTopic", name=TOPIC).success
    assert TOPIC not in two.node.storage.topics()


def test_an_owner_that_does_not_answer_is_told_and_a_call_is_forwarded_once(two: Brokers, at_b: Call) -> None:
    with grpc.insecure_channel(two["b"].admin.removeprefix("http://")) as channel:
        method = METHODS["DescribeTopic"]
        call = channel.unary_unary("/danube_admin.TopicAdmin/DescribeTopic", pb.DescribeTopicRequest.SerializeToString)
        with pytest.raises(grpc.RpcError) as again:
            call(pb.DescribeTopicRequest(name=TOPIC), metadata=[("x-frazil-forwarded", "1")], timeout=10)
        assert (again.value.code(), method.name) == (grpc.StatusCode.UNAVAILABLE, "DescribeTopic")
        assert "owned by the broker a" in again.value.details()
    two.kill("a")
    code, why = refused(at_b, "DescribeTopic", name=TOPIC)
    assert (code, "its owner a says" in why) == (grpc.StatusCode.UNAVAILABLE, True)


def test_a_topic_is_unloaded_to_another_broker(two: Brokers, at_b: Call) -> None:
    assert at_b("UnloadTopic", name=TOPIC).success
    assert two.cluster.owners[TopicName.parse(TOPIC)] == "b"
    assert at_b("DescribeTopic", name=TOPIC).broker_id == B
    assert at_b("UnloadTopic", name=PARTS).success
    assert two.cluster.owners[TopicName.parse(f"{PARTS}-part-1")] == "a"
    assert refused(at_b, "UnloadTopic", name="/default/nothing")[0] is grpc.StatusCode.NOT_FOUND


def test_a_broker_is_unloaded_and_activated(two: Brokers, at_b: Call) -> None:
    planned = at_b("UnloadBroker", broker_id=A, dry_run=True)
    assert (planned.started, planned.total, planned.pending, two.cluster.moves) == (False, 2, 2, [])
    some = at_b("UnloadBroker", broker_id=A, namespaces_exclude=["default"])
    assert (some.started, some.total) == (True, 0)
    two.cluster.failing[TopicName.parse(TOPIC)] = "the store does not answer"
    done = at_b("UnloadBroker", broker_id=A, max_parallel=2, timeout_seconds=5)
    assert (done.started, done.total, done.succeeded, done.failed, done.pending) == (True, 2, 1, 1, 0)
    assert list(done.failed_topics) == [TOPIC]
    assert {one.broker_id: one.broker_status for one in at_b("ListBrokers").brokers}[A] == "draining"
    assert at_b("ActivateBroker", broker_id=A, reason="maintenance is over").success
    assert {one.broker_id: one.broker_status for one in at_b("ListBrokers").brokers}[A] == "active"
    two.cluster.failing.clear()
    done = at_b("UnloadBroker", broker_id=A, namespaces_include=["default"])
    assert (done.total, done.succeeded) == (1, 1)
    assert {one.broker_id: one.broker_status for one in at_b("ListBrokers").brokers}[A] == "active"
    assert refused(at_b, "UnloadBroker", broker_id="7")[0] is grpc.StatusCode.NOT_FOUND
    assert refused(at_b, "UnloadBroker", broker_id=A, namespaces_include=["a/b"])[0] is grpc.StatusCode.INVALID_ARGUMENT


def test_the_load_is_shown_and_evened_out(two: Brokers, at_b: Call) -> None:
    for number in range(5):
        two.cluster.give(f"/default/more-{number}", "a")
    found = at_b("GetClusterBalance")
    assert (found.broker_count, found.max_load, found.min_load, found.mean_load) == (2, 7.0, 1.0, 4.0)
    assert {str(one.broker_id): (one.is_overloaded, one.is_underloaded) for one in found.brokers} == {
        A: (True, False),
        B: (False, True),
    }
    planned = at_b("TriggerRebalance", dry_run=True, max_moves=2)
    assert (planned.success, planned.moves_executed, len(planned.proposed_moves)) == (True, 0, 2)
    assert {(str(one.from_broker), str(one.to_broker)) for one in planned.proposed_moves} == {(A, B)}
    assert two.cluster.moves == []
    assert at_b("TriggerRebalance").moves_executed == 3
    assert at_b("GetClusterBalance").coefficient_of_variation == 0.0
    assert refused(at_b, "TriggerRebalance", max_moves=0)[0] is grpc.StatusCode.INVALID_ARGUMENT

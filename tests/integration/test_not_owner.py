"""A broker that does not own a topic says who does, on every door, and stock clients find the owner."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pyarrow as pa
import pyarrow.flight as fl
import pytest
from danube.client import DanubeClientBuilder
from danube.proto import DanubeApi_pb2 as pb
from danube.proto import DanubeApi_pb2_grpc as stubs

from parts.cluster import Brokers, brokers
from parts.danube import producer, subscriber

TOPIC, PARTS = "/default/orders", "/default/parts"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Brokers]:
    """`a` owns the topic; one partition is at each."""
    with brokers(tmp_path / "data") as found:
        storage = found.node.storage
        storage.topic(TOPIC).publish("first")
        for number, owner in enumerate("ab"):
            storage.topic(f"{PARTS}-part-{number}").publish(f"part {number}")
            found.cluster.give(f"{PARTS}-part-{number}", owner)
        found.cluster.give(TOPIC, "a")
        yield found


def lookup(two: Brokers, broker: str, topic: str) -> Any:
    with grpc.insecure_channel(two[broker].danube.removeprefix("http://")) as channel:
        return stubs.DiscoveryStub(channel).TopicLookup(pb.TopicLookupRequest(topic=topic), timeout=10)


def test_a_lookup_at_any_broker_leads_to_the_owner(two: Brokers) -> None:
    found = {name: lookup(two, name, TOPIC) for name in "ab"}
    assert found["a"].response_type == pb.TopicLookupResponse.Connect
    assert found["b"].response_type == pb.TopicLookupResponse.Redirect
    for answer in found.values():
        assert (answer.connect_url, answer.broker_url, answer.proxy) == (two["a"].danube, two["a"].danube, False)


def test_a_lookup_without_an_owner_is_tried_again_later(two: Brokers) -> None:
    two.cluster.unavailable[next(iter(two.cluster.owners))] = "unused"
    two.cluster.unavailable[list(two.cluster.owners)[-1]] = "its broker is gone"
    with pytest.raises(grpc.RpcError) as refused:
        lookup(two, "b", TOPIC)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "its broker is gone" in refused.value.details()


def test_partitions_are_those_of_all_brokers(two: Brokers) -> None:
    for name in "ab":
        with grpc.insecure_channel(two[name].danube.removeprefix("http://")) as channel:
            found = stubs.DiscoveryStub(channel).TopicPartitions(pb.TopicLookupRequest(topic=PARTS), timeout=10)
        assert list(found.partitions) == [f"{PARTS}-part-0", f"{PARTS}-part-1"]


def test_stock_clients_begin_at_any_broker_and_go_on_after_a_move(two: Brokers) -> None:
    async def work() -> None:
        client = await DanubeClientBuilder().service_url(two["b"].danube).build()
        sending = await producer(client, TOPIC)
        async with subscriber(client, topic=TOPIC) as taking:
            for number in range(20):
                if number == 10:
                    two.cluster.give(TOPIC, "b")
                await asyncio.wait_for(sending.send(b"%d" % number), 30)
            taken: list[str] = []
            while taken[-1:] != ["19"]:
                taken += await taking.texts(1)
            assert list(dict.fromkeys(taken)) == [str(number) for number in range(20)]
        await sending.close()

    asyncio.run(asyncio.wait_for(work(), 90))
    assert two.node.storage.topic(TOPIC).stats().end == 21


def test_health_checks_say_that_a_topic_has_moved(two: Brokers) -> None:
    with grpc.insecure_channel(two["a"].danube.removeprefix("http://")) as channel:
        made = stubs.ProducerServiceStub(channel).CreateProducer(
            pb.ProducerRequest(producer_name="p", topic_name=TOPIC, dispatch_strategy=pb.Reliable), timeout=10
        )
        subscribed = stubs.ConsumerServiceStub(channel).Subscribe(
            pb.ConsumerRequest(
                topic_name=TOPIC, consumer_name="c", subscription="s", subscription_type=pb.ConsumerRequest.Shared
            ),
            timeout=10,
        )
        asks = [
            pb.HealthCheckRequest(client=pb.HealthCheckRequest.Producer, id=made.producer_id),
            pb.HealthCheckRequest(client=pb.HealthCheckRequest.Consumer, id=subscribed.consumer_id),
        ]
        health = stubs.HealthCheckStub(channel)
        assert [health.HealthCheck(one, timeout=10).status for one in asks] == [pb.HealthCheckResponse.OK] * 2
        stream = stubs.ConsumerServiceStub(channel).ReceiveMessages(
            pb.ReceiveRequest(consumer_id=subscribed.consumer_id), timeout=10
        )
        stream.initial_metadata()
        two.cluster.give(TOPIC, "b")
        assert [health.HealthCheck(one, timeout=10).status for one in asks] == [pb.HealthCheckResponse.CLOSE] * 2
        with pytest.raises(grpc.RpcError) as ended:
            next(stream)
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "owned by the broker b" in ended.value.details()


def test_flight_says_where_the_owner_is(two: Brokers) -> None:
    wanted = fl.Ticket(json.dumps({"read": {"topic": TOPIC}}))
    with fl.connect(two["b"].flight) as client, pytest.raises(fl.FlightUnavailableError) as refused:
        client.do_get(wanted).read_all()
    told = json.loads(refused.value.extra_info)
    assert (told["error"], told["broker_id"], told["addresses"]["flight"]) == ("not_owner", "a", two["a"].flight)
    with fl.connect(two["b"].flight) as client:
        with pytest.raises(fl.FlightUnavailableError, match="owned by the broker a"):
            client.get_flight_info(fl.FlightDescriptor.for_path("default", "orders"))
        (told,) = client.do_action("brokers")
        assert {one["broker_id"]: one["flight"] for one in json.loads(told.body.to_pybytes())} == {
            "a": two["a"].flight,
            "b": two["b"].flight,
        }
        (names,) = client.do_action("topics")
        assert json.loads(names.body.to_pybytes()) == [TOPIC, f"{PARTS}-part-0", f"{PARTS}-part-1"]


def test_a_stock_flight_client_gets_the_owners_of_partitions(two: Brokers) -> None:
    with fl.connect(two["a"].flight) as client:
        info = client.get_flight_info(fl.FlightDescriptor.for_path("default", "parts"))
        mine, other = info.endpoints
        assert mine.locations == []
        assert [one.uri.decode() for one in other.locations] == [two["b"].flight]
        assert client.do_get(mine.ticket).read_all()["_payload"].to_pylist() == [b"part 0"]
    with fl.connect(other.locations[0]) as client:
        assert client.do_get(other.ticket).read_all()["_payload"].to_pylist() == [b"part 1"]
    assert info.schema.field("_payload").type == pa.binary()


def test_a_reader_that_follows_ends_when_the_topic_moves(two: Brokers) -> None:
    wanted = fl.Ticket(json.dumps({"read": {"topic": TOPIC, "follow": True}}))
    with fl.connect(two["a"].flight) as client:
        reader = client.do_get(wanted)
        assert reader.read_chunk().app_metadata is not None
        assert reader.read_chunk().data.num_rows == 1
        two.cluster.give(TOPIC, "b")
        with pytest.raises(fl.FlightUnavailableError) as ended:
            list(iter(reader.read_chunk, None))  # empty notes until it ends
    assert json.loads(ended.value.extra_info)["broker_id"] == "b"


def test_http_redirects_to_the_owner_and_curl_follows(two: Brokers) -> None:
    path = f"/v1/topics{TOPIC}/retention?x=%2F"
    answer = httpx.get(two["b"].http + path)
    assert (answer.status_code, answer.json()["error"]) == (307, "not_owner")
    assert answer.headers["location"] == two["a"].http + path
    assert int(answer.headers["retry-after"]) >= 1
    command = ["curl", "-sS", "-L", "-X", "PUT", "-H", "content-type: application/json", "-d", '{"age_ms": 5000}']
    followed = subprocess.run([*command, two["b"].http + path], capture_output=True, check=True, timeout=30)
    assert json.loads(followed.stdout)["retention"]["age_ms"] == 5000


def test_http_says_why_nobody_serves_a_topic(two: Brokers) -> None:
    two.cluster.unavailable[sorted(two.cluster.owners)[0]] = "its broker is gone; start it again"
    answer = httpx.get(f"{two['b'].http}/v1/topics{TOPIC}")
    assert (answer.status_code, answer.json()["error"]) == (503, "topic_unavailable")
    assert int(answer.headers["retry-after"]) >= 1
    (listed,) = [one for one in httpx.get(f"{two['b'].http}/v1/topics").json()["items"] if one["topic"] == TOPIC]
    assert (listed["owner"], listed["problem"]) == (None, "its broker is gone; start it again")
    (told,) = httpx.get(f"{two['b'].http}/v1/topics{TOPIC}/owner").json()["owners"]
    assert (told["broker_id"], told["problem"]) == (None, "its broker is gone; start it again")


def test_topics_of_all_brokers_are_listed_with_their_owners(two: Brokers) -> None:
    for broker in "ab":
        found = {one["topic"]: one for one in httpx.get(f"{two[broker].http}/v1/topics").json()["items"]}
        assert {name: one["owner"] for name, one in found.items()} == {
            TOPIC: "a",
            f"{PARTS}-part-0": "a",
            f"{PARTS}-part-1": "b",
        }
        assert found[TOPIC]["messages"] == (1 if broker == "a" else None)


def test_partitions_at_several_brokers_are_described_together_and_deleted_each(two: Brokers) -> None:
    found = httpx.get(f"{two['a'].http}/v1/topics{PARTS}").json()
    assert [(one["owner"], one["messages"]) for one in found["partitions"]] == [("a", 1), ("b", None)]
    assert found["messages"] is None
    refused = httpx.delete(f"{two['a'].http}/v1/topics{PARTS}")
    assert (refused.status_code, refused.json()["error"]) == (409, "partitions_elsewhere")
    assert refused.json()["elsewhere"] == {f"{PARTS}-part-1": "b"}
    two.cluster.give(f"{PARTS}-part-1", "a")
    assert httpx.delete(f"{two['b'].http}/v1/topics{PARTS}").status_code == 307

"""A topic with partitions over every door: made, consumed in each of the four ways, set back, given a policy, its dead
letters, its figures, and deleted."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from danube.consumer import SubType
from google.protobuf.message_factory import GetMessageClass

import frazil
from frazil.cli.main import main
from frazil.doors.danube_admin import danube_admin_pb2 as pb
from parts.danube import Server, connect, producer, serving, subscriber

PARTITIONS = 3
MESSAGES = 12


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    how = {"redelivery_delay_ms": 20, "redeliveries_max": 0, "poison": "dead_letter"}
    with serving(tmp_path_factory.mktemp("partitions"), **how) as found:
        yield found
        assert "Traceback" not in found.log()


class Http:
    def __init__(self, server: Server) -> None:
        self._url = server.http

    def __call__(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = httpx.request(method, self._url + path, timeout=30, **more)
        assert answer.status_code == status, answer.text
        return answer.json()


@pytest.fixture
def http(server: Server) -> Http:
    return Http(server)


def admin(server: Server, service: str, call: str, **fields: Any) -> Any:
    method = pb.DESCRIPTOR.services_by_name[service].methods_by_name[call]
    request, response = GetMessageClass(method.input_type), GetMessageClass(method.output_type)
    with grpc.insecure_channel(server.admin.removeprefix("http://")) as channel:
        path = f"/danube_admin.{service}/{call}"
        made = channel.unary_unary(path, request.SerializeToString, response.FromString)
        return made(request(**fields), timeout=30)


def by_http(server: Server, topic: str) -> None:
    Http(server)("POST", "/v1/topics", 201, json={"topic": topic, "partitions": PARTITIONS})


def by_danube(server: Server, topic: str) -> None:
    fields = {"base_name": topic, "partitions": PARTITIONS, "dispatch_strategy": pb.Reliable}
    assert admin(server, "TopicAdmin", "CreatePartitionedTopic", **fields).success


def by_verb(server: Server, topic: str) -> None:
    verb(server, "topics", "create", topic, "--partitions", str(PARTITIONS))


def by_flight(server: Server, topic: str) -> None:
    with frazil.connect(server.flight) as remote:
        remote.create_partitions(topic, PARTITIONS)


def verb(server: Server, *words: str, code: int = 0) -> None:
    assert main([*words, "--data", str(server.folder / "data")]) == code


DOORS: dict[str, tuple[Callable[[Server, str], None], SubType]] = {
    "http": (by_http, SubType.SHARED),
    "danube": (by_danube, SubType.KEY_SHARED),
    "verb": (by_verb, SubType.FAILOVER),
    "flight": (by_flight, SubType.EXCLUSIVE),
}


def names_of(topic: str) -> list[str]:
    return [f"{topic}-part-{number}" for number in range(PARTITIONS)]


async def consumed(server: Server, topic: str, kind: SubType, *, count: int = MESSAGES) -> Counter[str]:
    """By which partition the messages came, each acknowledged."""
    client = await connect(server)
    sender = await producer(client, topic, partitions=PARTITIONS)
    async with subscriber(client, "c", kind, topic=topic) as receiver:
        for number in range(count):
            await sender.send(str(number).encode())
        found = await receiver.take(count)
    assert sorted(int(one.payload) for one in found) == list(range(count))
    return Counter(one.msg_id.topic_name for one in found)


@pytest.mark.parametrize("door", DOORS)
def test_partitions_made_by_any_door_are_consumed_set_back_described_and_deleted(
    server: Server, http: Http, capsys: pytest.CaptureFixture[str], door: str
) -> None:
    make, kind = DOORS[door]
    topic = f"/default/by-{door}"
    names = names_of(topic)
    make(server, topic)
    came = asyncio.run(asyncio.wait_for(consumed(server, topic, kind), 100))
    assert came == dict.fromkeys(names, MESSAGES // PARTITIONS)

    figures = http("GET", f"/v1/topics{topic}")
    assert (figures["messages"], figures["subscriptions"], figures["producers"]) == (MESSAGES, PARTITIONS, PARTITIONS)
    capsys.readouterr()
    verb(server, "topics", "describe", topic, "--json")
    assert json.loads(capsys.readouterr().out)["messages"] == MESSAGES
    described = admin(server, "TopicAdmin", "DescribeTopic", name=topic)
    assert list(described.subscriptions) == ["s"]

    for name in names:
        path = f"/v1/topics{name}/subscriptions/s"
        assert http("GET", path)["lag"] == 0
        assert http("POST", f"{path}/reset", json={"to": "offset", "offset": 1})["lag"] == MESSAGES // PARTITIONS - 1
    again = asyncio.run(asyncio.wait_for(left(server, topic, kind, PARTITIONS * (MESSAGES // PARTITIONS - 1)), 100))
    assert again == dict.fromkeys(names, MESSAGES // PARTITIONS - 1)

    with frazil.connect(server.flight) as remote:
        assert remote.topic(names[1], create=False).stats().end == MESSAGES // PARTITIONS
        with remote.topic(names[1]).subscribe("flight", kind="shared", consumer="f") as messages:
            remote.topic(names[1]).publish("tea")
            found = next(messages)
            assert found.payload == b"tea"
            messages.ack(found.offset)
    verb(server, "topics", "delete", topic, "--yes", code=1)
    assert len(http("GET", f"/v1/topics{topic}")["partitions"]) == PARTITIONS, "refused, it is all there"
    assert admin(server, "TopicAdmin", "DeleteTopic", name=topic).success
    assert http("GET", f"/v1/topics{topic}", 404)["error"] == "topic_not_found"
    assert not any(name in one["topic"] for one in http("GET", "/v1/topics?limit=1000")["items"] for name in names)
    make(server, topic)
    assert http("GET", f"/v1/topics{topic}")["subscriptions"] == 0, "nothing of the old one is left"


async def left(server: Server, topic: str, kind: SubType, count: int) -> Counter[str]:
    async with subscriber(await connect(server), "c", kind, topic=topic) as receiver:
        return Counter(one.msg_id.topic_name for one in await receiver.take(count))


def test_a_policy_is_set_of_each_partition_and_dead_letters_are_those_of_all(server: Server, http: Http) -> None:
    topic = "/default/letters"
    by_http(server, topic)
    names = names_of(topic)

    async def refuse() -> None:
        client = await connect(server)
        sender = await producer(client, topic, partitions=PARTITIONS)
        async with subscriber(client, "c", SubType.SHARED, topic=topic) as receiver:
            for number in range(PARTITIONS):
                await sender.send(str(number).encode())
            for message in await receiver.take(PARTITIONS, ack=False):
                await receiver.consumer.nack(message, reason="no")
            await sender.send(b"last")
            await receiver.take(1)

    asyncio.run(asyncio.wait_for(refuse(), 100))
    path = f"/v1/topics{topic}/dead-letters"
    for _ in range(300):
        letters = http("GET", path)["items"]
        if len(letters) == PARTITIONS:
            break
    assert sorted(one["original_topic"] for one in letters) == names
    for name in names:
        (own,) = http("GET", f"/v1/topics{name}/dead-letters")["items"]
        assert own["original_topic"] == name
    assert http("POST", f"{path}/replay", json={"which": "all"})["replayed"] == PARTITIONS
    assert http("GET", f"/v1/topics{topic}")["messages"] == 2 * PARTITIONS + 1
    for name in names[:2]:
        wanted = {"poison": "block", "redeliveries_max": 4}
        assert http("PUT", f"/v1/topics{name}/subscriptions/s/policy", json=wanted)["policy"]["redeliveries_max"] == 4
    effective = [http("GET", f"/v1/topics{name}/subscriptions/s/policy")["effective"]["poison"] for name in names]
    assert effective == ["block", "block", "dead_letter"], "each has its own"


def test_a_call_on_one_subscription_says_that_the_topic_has_partitions(server: Server, http: Http) -> None:
    topic = "/default/named"
    by_http(server, topic)
    path = f"/v1/topics{topic}/subscriptions"
    calls = [
        ("GET", path, None),
        ("GET", f"/v1/topics{topic}/producers", None),
        ("GET", f"{path}/s", None),
        ("DELETE", f"{path}/s", None),
        ("POST", f"{path}/s/reset", {"to": "earliest"}),
        ("GET", f"{path}/s/policy", None),
        ("PUT", f"{path}/s/policy", {"poison": "block"}),
    ]
    for method, where, body in calls:
        told = http(method, where, 404, json=body)
        assert told["error"] == "topic_not_found"
        assert f"name one of them, as {topic}-part-0" in told["message"], (method, where)
    with pytest.raises(grpc.RpcError, match="name one of them"):
        admin(server, "TopicAdmin", "Unsubscribe", topic=topic, subscription="s")
    with frazil.connect(server.flight) as remote, pytest.raises(frazil.FrazilError, match="partitions"):
        remote.topic(topic).subscribe("s")
    assert Path(server.folder / "data").exists()

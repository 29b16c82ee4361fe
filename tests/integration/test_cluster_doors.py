"""Clients and verbs with a real cluster: two `frazil serve` processes on one etcd and one object store."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from danube.client import DanubeClientBuilder

import frazil
from frazil.cli.main import main
from parts.cluster_members import Member, started_members, until
from parts.danube import producer, subscriber
from parts.etcd import etcd_server

pytestmark = pytest.mark.timeout(240)

TOPIC = "/default/orders"


@pytest.fixture
def members(tmp_path: Path) -> Iterator[dict[str, Member]]:
    with etcd_server(tmp_path / "etcd") as etcd, started_members(tmp_path, etcd.endpoint) as found:
        yield found


class Verbs:
    def __init__(self, capsys: pytest.CaptureFixture[str], member: Member) -> None:
        self._capsys = capsys
        self._member = member

    def __call__(self, *words: str, code: int = 0) -> Any:
        self._capsys.readouterr()
        found = main([*words, "--server", self._member.http, "--json"])
        told = self._capsys.readouterr()
        assert found == code, (told.err, self._member.log()[-3_000:])
        return json.loads(told.out.strip() or "null")

    def owner(self, topic: str) -> str:
        (found,) = self("topics", "owner", topic)
        return str(found["broker_id"])


def test_a_topic_moves_under_load_and_nothing_is_lost_or_doubled(
    members: dict[str, Member], capsys: pytest.CaptureFixture[str]
) -> None:
    verbs, ends, offsets = Verbs(capsys, members["b"]), threading.Event(), []
    with frazil.connect(members["a"].flight, producer="p") as client:
        topic = client.create_topic(TOPIC)
        until(lambda: verbs("topics", "list") != [])  # the other broker has heard of it
        assert verbs.owner(TOPIC) == "a"

        def publish() -> None:
            while not ends.is_set():
                offsets.append(topic.publish(b"%d" % len(offsets)))

        reader = topic.read(follow=True)
        publishing = threading.Thread(target=publish)
        publishing.start()
        for to in "bab":
            (moved,) = verbs("topics", "move", TOPIC, "--to", to)
            assert moved["broker_id"] == to
            count = len(offsets)
            until(lambda count=count: len(offsets) > count + 5)  # some load at each broker
        ends.set()
        publishing.join(60)
        assert offsets == list(range(len(offsets)))
        assert len(offsets) > 10
        assert [next(reader).payload for _ in offsets] == [b"%d" % number for number in range(len(offsets))]
        reader.close()


def test_stock_clients_go_on_after_a_move(members: dict[str, Member], capsys: pytest.CaptureFixture[str]) -> None:
    verbs = Verbs(capsys, members["a"])

    async def work() -> None:
        client = await DanubeClientBuilder().service_url(members["b"].url).build()
        sending = await producer(client, TOPIC)
        async with subscriber(client, topic=TOPIC) as taking:
            for number in range(20):
                if number == 10:
                    await asyncio.to_thread(until, lambda: verbs("topics", "list") != [])
                    to = "a" if await asyncio.to_thread(verbs.owner, TOPIC) == "b" else "b"
                    await asyncio.to_thread(verbs, "topics", "move", TOPIC, "--to", to)
                await asyncio.wait_for(sending.send(b"%d" % number), 60)
            taken: list[str] = []
            while taken[-1:] != ["19"]:
                taken += await taking.texts(1)
            assert list(dict.fromkeys(taken)) == [str(number) for number in range(20)]
        await sending.close()

    asyncio.run(asyncio.wait_for(work(), 120))


def test_a_broker_is_drained_restarted_and_gets_topics_again(
    members: dict[str, Member], capsys: pytest.CaptureFixture[str]
) -> None:
    verbs = Verbs(capsys, members["b"])
    with frazil.connect(members["a"].flight) as client:
        for number in range(4):
            client.create_topic(f"/default/t{number}").publish("before")
    until(lambda: len(verbs("topics", "list")) == 4)
    assert {one["broker_id"]: one["state"] for one in verbs("brokers", "list")} == {"a": "active", "b": "active"}
    drained = verbs("brokers", "drain", "a")
    assert (drained["moved"], drained["pending"], drained["failed"]) == (4, 0, {})
    assert {verbs.owner(f"/default/t{number}") for number in range(4)} == {"b"}
    assert [(one["messages"], one["end"]) for one in verbs("topics", "list")] == [(1, 1)] * 4
    assert members["a"].stop() == 0
    members["a"].start()
    with frazil.connect([members["a"].flight, members["b"].flight]) as client:
        assert client.topic("/default/t0").publish("after") == 1
    assert {one["broker_id"]: one["state"] for one in verbs("brokers", "list")}["a"] == "draining"
    verbs("brokers", "activate", "a")
    moves = verbs("brokers", "rebalance")["moves"]
    assert {one["to_broker"] for one in moves} == {"a"}
    assert "a" in {verbs.owner(f"/default/t{number}") for number in range(4)}


def test_a_client_goes_on_after_the_owner_was_killed(members: dict[str, Member]) -> None:
    with frazil.connect(members["a"].flight, producer="p") as client:
        topic = client.create_topic(TOPIC, ack="object")
        assert topic.publish("before") == 0
        reader = topic.read(follow=True)
        assert next(reader).payload == b"before"
        members["a"].kill()
        assert topic.publish("after") == 1
        assert next(reader).payload == b"after"
        reader.close()

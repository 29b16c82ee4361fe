"""`frazil brokers`, `frazil topics owner` and `move`, and other verbs at a broker that does not own the topic."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import frazil
from frazil.cli.main import main
from frazil.core.names import TopicName
from frazil.doors.http.door import make_app
from frazil.node.node import Node
from parts.cluster import Brokers, brokers

TOPIC, PARTS = "/default/orders", "/default/parts"


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Brokers]:
    with brokers(tmp_path / "data") as found:
        storage = found.node.storage
        storage.topic(TOPIC).publish("first")
        found.cluster.give(TOPIC, "a")
        for number, owner in enumerate("ab"):
            storage.topic(f"{PARTS}-part-{number}").publish_many(["x"] * (number + 1))
            found.cluster.give(f"{PARTS}-part-{number}", owner)
        yield found


class Verbs:
    def __init__(self, capsys: pytest.CaptureFixture[str], address: str) -> None:
        self._capsys = capsys
        self._address = address
        self.err = ""

    def __call__(self, *words: str, code: int = 0, as_json: bool = True) -> Any:
        self._capsys.readouterr()
        found = main([*words, "--server", self._address, *(["--json"] if as_json else [])])
        told = self._capsys.readouterr()
        self.err = told.err
        assert found == code, told.err
        return json.loads(told.out.strip() or "null") if as_json else told.out


@pytest.fixture
def at_b(two: Brokers, capsys: pytest.CaptureFixture[str]) -> Verbs:
    return Verbs(capsys, two["b"].http)


def test_brokers_are_listed(two: Brokers, at_b: Verbs) -> None:
    found = at_b("brokers", "list")
    assert [(one["broker_id"], one["state"], one["topics"], one["is_leader"], one["is_asked"]) for one in found] == [
        ("a", "active", 2, True, False),
        ("b", "active", 1, False, True),
    ]
    assert found[0]["addresses"]["danube"] == two["a"].danube
    shown = at_b("brokers", "list", as_json=False)
    assert "a (leader)" in shown
    assert two["b"].flight in shown


def test_every_broker_knows_the_owner(two: Brokers, at_b: Verbs) -> None:
    (found,) = at_b("topics", "owner", TOPIC)
    assert (found["topic"], found["broker_id"], found["addresses"]["flight"]) == (TOPIC, "a", two["a"].flight)
    assert [one["broker_id"] for one in at_b("topics", "owner", PARTS)] == ["a", "b"]
    at_b("topics", "owner", "/default/nothing", code=3)


def test_a_topic_moves_to_the_named_broker_or_to_the_least_loaded(two: Brokers, at_b: Verbs) -> None:
    (found,) = at_b("topics", "move", TOPIC)
    assert found["broker_id"] == "b"
    (found,) = at_b("topics", "move", TOPIC, "--to", "a")
    assert found["broker_id"] == "a"
    assert two.cluster.moves == [(TOPIC, "b", False), (TOPIC, "a", False)]
    at_b("topics", "move", TOPIC, "--to", "nobody", code=1)
    assert "broker_not_found" in at_b.err
    assert [one["broker_id"] for one in at_b("topics", "move", PARTS, "--to", "b")] == ["b", "b"]


def test_loss_is_accepted_only_by_its_name_and_a_confirmation(
    two: Brokers, at_b: Verbs, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = TopicName.parse(TOPIC)
    two.cluster.needs_loss.add(name)
    at_b("topics", "move", TOPIC, code=1)
    assert "loss_not_accepted" in at_b.err
    assert two.cluster.moves == []
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    at_b("topics", "move", TOPIC, "--accept-loss", code=1)
    assert f"rows of {TOPIC} that were not uploaded are only on the disk of the broker a" in at_b.err
    assert two.cluster.moves == []
    at_b("topics", "move", TOPIC, "--accept-loss", "--yes")
    assert two.cluster.moves == [(TOPIC, "b", True)]


def test_no_loss_is_accepted_where_none_is_needed(two: Brokers, at_b: Verbs) -> None:
    at_b("topics", "move", TOPIC, "--accept-loss", "--yes")
    assert two.cluster.moves == [(TOPIC, "b", False)]


def test_a_drain_goes_on_until_no_topic_is_left(two: Brokers, at_b: Verbs) -> None:
    for number in range(9):
        two.cluster.give(f"/default/more-{number}", "a")
    found = at_b("brokers", "drain", "a", "--parallel", "2")
    assert found == {"broker_id": "a", "total": 11, "moved": 11, "pending": 0, "failed": {}}
    assert set(two.cluster.owners.values()) == {"b"}
    assert {one["broker_id"]: one["state"] for one in at_b("brokers", "list")} == {"a": "draining", "b": "active"}
    assert at_b("brokers", "activate", "a") == {"broker_id": "a", "state": "active"}
    at_b("brokers", "drain", "nobody", code=1)


def test_a_drain_names_the_topics_that_stay(two: Brokers, at_b: Verbs) -> None:
    two.cluster.failing[TopicName.parse(TOPIC)] = "the store does not answer"
    found = at_b("brokers", "drain", "a", code=4)
    assert (found["moved"], found["pending"]) == (1, 0)
    assert list(found["failed"]) == [TOPIC]
    two.cluster.states.clear()
    at_b("brokers", "drain", "a", as_json=False, code=4)
    assert f"{TOPIC} stays: " in at_b.err
    assert "the store does not answer" in at_b.err


def test_a_rebalance_is_planned_and_made(two: Brokers, at_b: Verbs) -> None:
    for number in range(6):
        two.cluster.give(f"/default/more-{number}", "a")
    planned = at_b("brokers", "rebalance", "--dry-run")
    assert planned["dry_run"]
    assert len(planned["moves"]) == 3
    assert two.cluster.moves == []
    assert len(at_b("brokers", "rebalance", "--moves-max", "1")["moves"]) == 1
    shown = at_b("brokers", "rebalance", as_json=False)
    assert "a has more load than the mean" in shown
    balance = at_b("brokers", "balance")
    assert (balance["mean"], balance["max"], balance["min"]) == (4.5, 5.0, 4.0)
    assert at_b("brokers", "rebalance", as_json=False).startswith("the load is even")


def test_verbs_follow_a_topic_to_its_owner(two: Brokers, at_b: Verbs) -> None:
    kept = at_b("topics", "retention", TOPIC, "--retention-age", "7d")
    assert kept["retention"]["age_ms"] == 7 * 24 * 60 * 60 * 1_000
    assert at_b("topics", "describe", TOPIC)["owner"] == "a"
    assert at_b("topics", "describe", TOPIC)["messages"] == 1
    at_b("topics", "create", "/default/made")
    two.cluster.give("/default/made", "a")
    assert at_b("subscriptions", "list", "/default/made") == []
    assert at_b("topics", "delete", TOPIC, "--yes") == {"topic": TOPIC, "deleted": True, "messages": 1}


def test_lists_have_the_figures_of_all_owners(two: Brokers, at_b: Verbs) -> None:
    found = at_b("topics", "list")
    assert [(one["topic"], one["owner"], one["messages"]) for one in found] == [
        (TOPIC, "a", 1),
        (f"{PARTS}-part-0", "a", 1),
        (f"{PARTS}-part-1", "b", 2),
    ]
    described = at_b("topics", "describe", PARTS)
    assert [(one["owner"], one["messages"]) for one in described["partitions"]] == [("a", 1), ("b", 2)]
    assert "owner" in at_b("topics", "list", as_json=False).splitlines()[0]
    two.kill("a")
    assert [one["messages"] for one in at_b("topics", "list")] == [None, None, 2]
    assert "left out" in at_b.err


def test_partitions_at_several_brokers_are_deleted_at_each(two: Brokers, at_b: Verbs) -> None:
    assert at_b("topics", "delete", PARTS, "--yes")["messages"] == 3
    assert [str(name) for name in two.node.storage.names()] == [TOPIC]


def test_a_topic_without_a_broker_is_told_with_the_reason(two: Brokers, at_b: Verbs) -> None:
    two.cluster.unavailable[TopicName.parse(TOPIC)] = "the broker a is gone; start it again"
    at_b("topics", "describe", TOPIC, code=4)
    assert "the broker a is gone; start it again" in at_b.err
    at_b("topics", "owner", TOPIC, as_json=False)
    assert "is not served: the broker a is gone" in at_b.err


def test_a_server_that_is_alone_lists_itself_and_refuses_moves(tmp_path: Path) -> None:
    async def ask(app: Any) -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            (alone,) = (await client.get("/v1/cluster/brokers")).json()["items"]
            assert (alone["is_leader"], alone["is_asked"], alone["topics"]) == (True, True, 1)
            for path in (
                f"/v1/topics{TOPIC}/move",
                "/v1/cluster/rebalance",
                f"/v1/cluster/brokers/{alone['broker_id']}/drain",
                f"/v1/cluster/brokers/{alone['broker_id']}/activate",
            ):
                refused = await client.post(path, json={})
                assert (refused.status_code, refused.json()["error"]) == (409, "cluster_off"), path

    with frazil.open(tmp_path) as storage:
        storage.create_topic(TOPIC)
        asyncio.run(ask(make_app(Node(storage))))

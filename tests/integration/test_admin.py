"""The admin door of a real `frazil serve`, with stock Danube clients at work: every route, and what it does to them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import grpc.aio
import pytest
from admin_http import Http, ok, refused, run, verb
from danube.consumer import SubType
from danube.dispatch_strategy import DispatchStrategy
from danube.producer import ProducerOptions

import frazil
from frazil.cli.main import main
from parts.danube import Server, connect, producer, serving, subscriber
from parts.moving import HandMover
from parts.processes import pause

pytestmark = pytest.mark.timeout(180)

MOVED = "/shop/orders"
ENDED = ("done", "failed", "cancelled")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """With one topic of which the table has 30 of 40 rows."""
    folder = tmp_path_factory.mktemp("admin")
    settings = frazil.Settings.of_folder(folder / "data")
    with frazil.open(settings) as storage:
        topic = storage.topic(MOVED)
        topic.publish_many([str(number) for number in range(30)])
        HandMover(settings).move(topic)
        topic.publish_many([str(number) for number in range(10)])
    rules = {"redelivery_delay_ms": 20, "redeliveries_max": 0, "poison": "dead_letter", "ack_timeout_ms": 60_000}
    with serving(folder, **rules) as found:
        yield found
        assert "Traceback" not in found.log()


@pytest.fixture
def http(server: Server) -> Iterator[Http]:
    with contextlib.closing(Http(server.http)) as client:
        yield client


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    return f"/default/{request.node.name.split('[')[0][5:85]}"


def test_a_topic_is_made_described_and_deleted(
    server: Server, http: Http, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = {"topic": topic, "retention": {"age_ms": 60_000}, "ack": "memory"}
    made = ok(http.post("/v1/topics", json=wanted), 201)
    assert (made["topic"], made["typed"], made["partitions"]) == (topic, False, [])
    refused(http.post("/v1/topics", json=wanted), 409, "topic_exists")
    shown = ok(http.get(f"/v1/topics{topic}"))
    assert (shown["log_id"], shown["reliable"], shown["retention"]["age_ms"]) == (made["log_id"], True, 60_000)
    assert shown["ack"] == "memory"
    by_verb = verb(capsys, server, "topics", "describe", topic)
    for tier in (*shown["tiers"].values(), *by_verb["tiers"].values()):
        if tier is not None:
            del tier["learnt_us"]
    assert {name: shown[name] for name in by_verb} == by_verb
    assert ok(http.delete(f"/v1/topics{topic}")) == {"topic": topic, "deleted": True, "messages": 0}
    refused(http.get(f"/v1/topics{topic}"), 404, "topic_not_found")
    refused(http.delete(f"/v1/topics{topic}"), 404, "topic_not_found")


def test_a_typed_topic_has_its_columns(http: Http, topic: str) -> None:
    columns = [{"name": "amount", "type": "int64", "nullable": False}, {"name": "note", "type": "string"}]
    assert ok(http.post("/v1/topics", json={"topic": topic, "schema": columns}), 201)["typed"] is True
    shown = ok(http.get(f"/v1/topics{topic}"))["schema"]
    assert shown == [columns[0], {**columns[1], "nullable": True}]
    wrong = [{"name": "amount", "type": "int65"}]
    told = refused(http.post("/v1/topics", json={"topic": topic + "2", "schema": wrong}), 400, "invalid_input")
    assert "int65" in told["message"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "topic"),
        ({"topic": 7}, "topic"),
        ({"topic": "orders"}, "topic"),
        ({"topic": "/a/b", "partitions": 1_000}, "partitions"),
        ({"topic": "/a/b", "partitions": "3"}, "partitions"),
        ({"topic": "/a/b", "retention": {"age_ms": 0}}, "retention.age_ms"),
        ({"topic": "/a/b", "ack": "tape"}, "ack"),
        ({"topic": "/a/b", "ack": "object"}, "ack"),
        ({"topic": "/a/b", "ack": "memory", "reliable": False}, "ack"),
        ({"topic": "/a/b", "retention": {"age_ms": 1, "until_acked": 2}}, "retention.until_acked"),
        ({"topic": "/a/b", "colour": "red"}, "colour"),
        ({"topic": "/a/b", "schema": [{"name": "a", "type": "int64"}], "partitions": 2}, "partitions"),
        ({"topic": "/a/b-part-1", "partitions": 2}, "topic"),
    ],
)
def test_a_wrong_call_names_the_field(http: Http, body: dict[str, Any], field: str) -> None:
    code = "invalid_name" if body.get("topic") == "orders" else "invalid_input"
    assert refused(http.post("/v1/topics", json=body), 400, code)["field"] == field
    refused(http.get("/v1/topics/a/b"), 404, "topic_not_found")


def test_partitions_are_those_that_clients_use(
    server: Server, http: Http, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = ok(http.post("/v1/topics", json={"topic": topic, "partitions": 3}), 201)
    names = [f"{topic}-part-{number}" for number in range(3)]
    assert made["partitions"] == names

    async def work() -> None:
        client = await connect(server)
        async with subscriber(client, "c", SubType.SHARED, topic=topic) as receiver:
            sender = await producer(client, topic, partitions=3)
            for number in range(9):
                await sender.send(str(number).encode())
            assert sorted(await receiver.texts(9)) == [str(number) for number in range(9)]

    run(work())
    assert ok(http.get(f"/v1/topics{topic}/partitions"))["items"] == names
    page = ok(http.get(f"/v1/topics{topic}/partitions", params={"limit": 2}))
    assert (page["items"], page["next"]) == (names[:2], names[1])
    assert ok(http.get(f"/v1/topics{topic}/partitions", params={"after": names[1]}))["items"] == names[2:]
    assert ok(http.get(f"/v1/topics{names[1]}"))["partition_of"] == topic
    shown = ok(http.get(f"/v1/topics{topic}"))
    assert [one["topic"] for one in shown["partitions"]] == names
    assert (shown["messages"], shown["end"], shown["subscriptions"], shown["log_id"]) == (9, 9, 3, None)
    assert verb(capsys, server, "topics", "describe", topic)["messages"] == 9
    assert "name one of them" in refused(http.get(f"/v1/topics{topic}/retention"), 404, "topic_not_found")["message"]
    refused(http.post("/v1/topics", json={"topic": topic}), 409, "partitioning_differs")
    refused(http.post("/v1/topics", json={"topic": topic, "partitions": 4}), 409, "topic_exists")
    refused(http.delete(f"/v1/topics{topic}"), 409, "topic_in_use")
    assert ok(http.delete(f"/v1/topics{topic}?force=true"))["messages"] == 9
    refused(http.get(f"/v1/topics{names[0]}"), 404, "topic_not_found")


def test_partitions_made_by_a_verb_are_found_by_clients(
    server: Server, http: Http, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = verb(capsys, server, "topics", "create", topic, "--partitions", "2")
    names = [f"{topic}-part-{number}" for number in range(2)]
    assert made == {"topic": topic, "log_id": None, "typed": False, "partitions": names}

    async def work() -> None:
        client = await connect(server)
        async with subscriber(client, "c", SubType.SHARED, topic=topic) as receiver:
            sender = await producer(client, topic, partitions=2)
            await sender.send(b"tea")
            assert await receiver.texts(1) == ["tea"]

    run(work())
    assert verb(capsys, server, "topics", "delete", topic, "--yes", "--force")["messages"] == 1
    assert main(["topics", "describe", topic, "--data", str(server.folder / "data")]) != 0


def test_retention_is_set_and_given_back(http: Http, topic: str) -> None:
    ok(http.post("/v1/topics", json={"topic": topic}), 201)
    path = f"/v1/topics{topic}/retention"
    assert ok(http.get(path))["retention"] is None
    changed = ok(http.put(path, json={"bytes": 1_000, "age_ms": 5}))
    assert changed["effective"] == changed["retention"] == {"age_ms": 5, "bytes": 1_000, "until_acked": False}
    assert ok(http.put(path, json={"until_acked": True}))["retention"]["until_acked"] is True
    assert ok(http.delete(path)) == ok(http.get(path))
    assert ok(http.get(path))["effective"] == {"age_ms": None, "bytes": None, "until_acked": False}
    refused(http.put("/v1/topics/default/nothing/retention", json={}), 404, "topic_not_found")


def test_lists_come_in_pages(http: Http, topic: str) -> None:
    names = [f"{topic}{number}" for number in range(5)]
    for name in names:
        ok(http.post("/v1/topics", json={"topic": name}), 201)
    seen: list[str] = []
    after: str | None = None
    while True:
        page = ok(http.get("/v1/topics", params={"limit": 2, **({"after": after} if after else {})}))
        assert len(page["items"]) <= 2
        seen += [one["topic"] for one in page["items"]]
        after = page["next"]
        if after is None:
            break
    assert set(names) <= set(seen)
    assert len(seen) == len(set(seen))


def test_a_reset_takes_hold_of_a_live_consumer_and_voids_what_it_had(server: Server, http: Http, topic: str) -> None:
    path = f"/v1/topics{topic}/subscriptions/s"

    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, topic=topic) as receiver:
            for number in range(10):
                await sender.send(str(number).encode())
            await receiver.take(4)
            old = await receiver.take(6, ack=False)
            before = ok(http.get(path))
            assert (before["cursor"], before["lag"], before["in_flight"], before["connected"]) == (4, 6, 6, 1)
            after = ok(http.post(f"{path}/reset", json={"to": "offset", "offset": 2}))
            assert (after["cursor"], after["durable"], after["lag"], after["connected"]) == (2, 2, 8, 1)
            new = await receiver.take(8, ack=False)
            assert [message.payload.decode() for message in new] == [str(number) for number in range(2, 10)]
            for message in old:
                await receiver.consumer.ack(message)
            assert (ok(http.get(path))["cursor"], ok(http.get(path))["in_flight"]) == (2, 8), "those were void"
            for message in new:
                await receiver.consumer.ack(message)
            assert ok(http.get(path))["lag"] == 0
            await sender.send(b"later")
            assert await receiver.texts(1) == ["later"]

    run(work())


def test_a_reset_to_the_ends_and_to_a_time(server: Server, http: Http, topic: str) -> None:
    path = f"/v1/topics{topic}/subscriptions/s/reset"

    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, topic=topic) as receiver:
            await sender.send(b"a")
            await sender.send(b"b")
            assert await receiver.texts(2) == ["a", "b"]
            assert ok(http.post(path, json={"to": "earliest"}))["cursor"] == 0
            assert await receiver.texts(2) == ["a", "b"]
            assert ok(http.post(path, json={"to": "time", "time": "2020-01-01T00:00:00Z"}))["cursor"] == 0
            assert ok(http.post(path, json={"to": "latest"}))["lag"] == 0

    run(work())
    assert (
        "time zone"
        in refused(http.post(path, json={"to": "time", "time": "2020-01-01"}), 400, "invalid_input")["message"]
    )
    assert refused(http.post(path, json={"to": "offset", "offset": 3}), 409, "offset_out_of_range")["end"] == 2
    assert "to" in refused(http.post(path, json={"to": "nowhere"}), 400, "invalid_input")["message"]
    refused(http.post(f"/v1/topics{topic}/subscriptions/t/reset", json={"to": "latest"}), 404, "subscription_not_found")


def test_any_name_of_a_subscription_fits_into_a_path(server: Server, http: Http, topic: str) -> None:
    names = ["a/b", "100%", "%2F", "ü ?#", "s/reset"]

    async def work() -> None:
        client = await connect(server)
        await producer(client, topic)
        for name in names:
            async with subscriber(client, "kit/chen", topic=topic, subscription=name):
                pass

    run(work())
    seen = [one["subscription"] for one in ok(http.get(f"/v1/topics{topic}/subscriptions"))["items"]]
    assert sorted(seen) == sorted(names)
    for name in names:
        path = f"/v1/topics{topic}/subscriptions/" + "".join(f"%{byte:02x}" for byte in name.encode())
        assert ok(http.get(path))["subscription"] == name
        (consumer,) = ok(http.get(f"{path}/consumers"))["items"]
        assert (consumer["consumer"], consumer["connected"]) == ("kit/chen", False)
        assert ok(http.delete(path)) == {"topic": topic, "subscription": name, "deleted": True}
        refused(http.get(path), 404, "subscription_not_found")
    assert [one["producer"] for one in ok(http.get(f"/v1/topics{topic}/producers"))["items"]] == ["p"]


def test_a_policy_is_set_for_one_subscription_by_http_and_by_a_verb(
    server: Server, http: Http, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path, other = (f"/v1/topics{topic}/subscriptions/{name}/policy" for name in ("s", "other"))

    async def work() -> None:
        client = await connect(server)
        await producer(client, topic)
        async with subscriber(client, topic=topic), subscriber(client, topic=topic, subscription="other"):
            pass

    run(work())
    before = ok(http.get(path))
    assert set(before["policy"].values()) == {None}
    assert (before["effective"]["redelivery_delay_ms"], before["effective"]["poison"]) == (20, "dead_letter")
    assert before["effective"]["dead_letter_topic"] == f"{topic}-dead-letter"
    changed = ok(http.put(path, json={"redeliveries_max": 3, "backoff": "fixed"}))
    assert (changed["effective"]["redeliveries_max"], changed["policy"]["redeliveries_max"]) == (3, 3)
    words = ("subscriptions", "policy", topic, "s", "--ack-timeout", "5s", "--max-unacked-bytes", "1MiB")
    found = verb(capsys, server, *words)
    assert found["policy"] == {
        **before["policy"], "redeliveries_max": 3, "backoff": "fixed", "ack_timeout_ms": 5_000,
        "max_unacked_bytes": 2**20,
    }  # fmt: skip
    assert ok(http.get(other)) == {**before, "subscription": "other"}, "the other keeps the defaults"
    for wrong, limit in (
        ({"ack_timeout_ms": 0}, "1"),
        ({"max_unacked_messages": 10_001}, "10000"),
        ({"redeliveries_max": "3"}, "whole number"),
        ({"redelivery_delay_ms": 70_000}, "60000"),
        ({"poison": "ignore"}, "drop"),
        ({"dead_letter_topic": topic}, "itself"),
        ({"dead_letter_topic": "letters"}, "/namespace/topic"),
        ({"colour": "red"}, ""),
    ):
        told = refused(http.put(path, json=wrong), 400, "invalid_input")
        assert told["field"] == next(iter(wrong))
        assert limit in told["message"]
    assert ok(http.get(path)) == found, "what was refused changed nothing"
    refused(http.get(f"/v1/topics{topic}/subscriptions/none/policy"), 404, "subscription_not_found")
    main([*words[:4], "--data", str(server.folder / "data")])
    assert "its own" in capsys.readouterr().out
    assert verb(capsys, server, *words[:4], "--default") == before


def test_a_deleted_subscription_leaves_the_others_alone(server: Server, http: Http, topic: str) -> None:
    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        async with subscriber(client, topic=topic, subscription="stays") as stays:
            async with subscriber(client, topic=topic, subscription="goes") as goes:
                await sender.send(b"a")
                assert await goes.texts(1) == await stays.texts(1) == ["a"]
                ok(http.delete(f"/v1/topics{topic}/subscriptions/goes"))
            await sender.send(b"b")
            assert await stays.texts(1) == ["b"]

    run(work())


def test_a_topic_in_use_goes_by_force_and_stays_away_until_a_producer_is_made(
    server: Server, http: Http, topic: str
) -> None:
    path = f"/v1/topics{topic}"

    async def work() -> None:
        client = await connect(server)
        builder = client.new_producer().with_topic(topic).with_name("p")
        builder = builder.with_dispatch_strategy(DispatchStrategy.RELIABLE)
        impatient = ProducerOptions(max_retries=1, base_backoff_ms=10, max_backoff_ms=10)
        sender = builder.with_options(impatient).build()
        await sender.create()
        async with subscriber(client, topic=topic):
            await sender.send(b"a")
        told = refused(http.delete(path), 409, "topic_in_use")
        assert (told["subscriptions"], told["producers"]) == (1, 1)
        log_id = ok(http.get(path))["log_id"]
        assert ok(http.delete(path, params={"force": True}))["messages"] == 1
        refused(http.get(f"{path}/subscriptions"), 404, "topic_not_found")
        with pytest.raises(grpc.aio.AioRpcError):
            await sender.send(b"to a topic that is gone")
        refused(http.get(path), 404, "topic_not_found")
        again = await producer(client, topic)
        await again.send(b"b")
        shown = ok(http.get(path))
        assert shown["log_id"] != log_id
        assert (shown["messages"], shown["subscriptions"], shown["producers"]) == (1, 0, 1)

    run(work())


def test_dead_letters_are_shown_and_replayed(server: Server, http: Http, topic: str) -> None:
    path = f"/v1/topics{topic}/dead-letters"

    async def work() -> None:
        client = await connect(server)
        sender = await producer(client, topic)
        assert ok(http.get(path)) == {"items": [], "next": None}
        async with subscriber(client, topic=topic) as receiver:
            await sender.send_with_key(b"tea", {"own": "1"}, "anna")
            await sender.send(b"\xff\x00")
            for message in await receiver.take(2, ack=False):
                await receiver.consumer.nack(message, reason="cold")
            for _ in range(600):
                if len(ok(http.get(path))["items"]) == 2:
                    break
                await asyncio.sleep(0.05)
            page = ok(http.get(path, params={"limit": 1}))
            (letter,) = page["items"]
            assert page["next"] == letter["offset"] == 0
            assert (letter["text"], base64.b64decode(letter["payload"]), letter["reason"]) == ("tea", b"tea", "cold")
            assert (letter["original_topic"], letter["original_offset"], letter["original_subscription"]) == (
                topic,
                0,
                "s",
            )
            assert (letter["attributes"]["own"], base64.b64decode(letter["key"])) == ("1", b"anna")
            (other,) = ok(http.get(path, params={"after": page["next"]}))["items"]
            assert (other["text"], base64.b64decode(other["payload"])) == (None, b"\xff\x00")
            assert ok(http.post(f"{path}/replay", json={"which": "one", "offset": 0}))["replayed"] == 1
            (again,) = await receiver.take(1)
            assert (again.payload, again.routing_key, again.attributes["own"]) == (b"tea", "anna", "1")
            assert again.attributes["x-replayed-dead-letter"] == "0"
            assert "x-failure-reason" not in again.attributes
            done = ok(http.post(f"{path}/replay", json={"which": "all"}))
            assert done == {"replayed": 2, "next": None, "error": None}
            assert [message.payload for message in await receiver.take(2)] == [b"tea", b"\xff\x00"]

    run(work())
    refused(http.post(f"{path}/replay", json={"which": "one", "offset": 2}), 409, "offset_out_of_range")
    refused(http.get("/v1/topics/default/nothing/dead-letters"), 404, "topic_not_found")


def test_schemas_are_registered_checked_and_given_to_topics(http: Http, topic: str) -> None:
    record = '{"type": "record", "name": "r", "fields": [{"name": "a", "type": "int"}]}'
    other = record.replace('"a"', '"b"')
    first, following = ({"schema_type": "avro", "definition": one} for one in (record, other))
    path = "/v1/schemas/orders%2Fvalue"
    made = ok(http.post(f"{path}/versions", json=first), 201)
    assert (made["version"], made["is_new_version"]) == (1, True)
    assert ok(http.post(f"{path}/versions", json=first))["is_new_version"] is False
    checked = ok(http.post(f"{path}/check", json=following))
    assert (checked["compatible"], len(checked["reasons"])) == (False, 1)
    told = refused(http.post(f"{path}/versions", json=following), 409, "incompatible_schema")
    assert told["reasons"] == checked["reasons"]
    assert ok(http.put(path, json={"compatibility_mode": "none"}))["compatibility_mode"] == "none"
    assert ok(http.post(f"{path}/versions", json=following), 201)["version"] == 2
    assert json.loads(ok(http.get(f"{path}/latest"))["definition"]) == json.loads(other)
    assert ok(http.get(f"{path}/versions/1"))["schema_type"] == "avro"
    assert [one["version"] for one in ok(http.get(f"{path}/versions"))["items"]] == [1, 2]
    assert ok(http.delete(f"{path}/versions/1"))["deleted"] is True
    refused(http.get(f"{path}/versions/1"), 404, "schema_not_found")
    assert [one["subject"] for one in ok(http.get("/v1/schemas"))["items"]] == ["orders/value"]
    config = f"/v1/topics{topic}/schema"
    assert ok(http.get(config))["subject"] is None
    changed = ok(http.put(config, json={"subject": "orders/value", "validation_policy": "enforce"}))
    assert (changed["subject"], changed["validation_policy"]) == ("orders/value", "enforce")
    assert ok(http.get(config)) == changed
    refused(http.put(config, json={"subject": "nothing"}), 404, "schema_not_found")
    bad = {"schema_type": "avro", "definition": "no"}
    assert refused(http.post("/v1/schemas/new/versions", json=bad), 400, "invalid_schema")["field"]


def test_tables_and_pipeline_are_what_the_verbs_show(
    server: Server, http: Http, capsys: pytest.CaptureFixture[str]
) -> None:
    (table,) = ok(http.get("/v1/tables"))["items"]
    assert [table] == verb(capsys, server, "table", "list")
    assert (table["table"], table["rows"], list(table["ends"].values())) == ("shop.orders", 30, [30])
    described = ok(http.get("/v1/tables/shop/orders"))
    assert described == verb(capsys, server, "table", "describe", MOVED)
    refused(http.get("/v1/tables/shop/nothing"), 404, "table_not_found")
    shown = ok(http.get("/v1/pipeline", params={"after": "/shop/a", "limit": 1}))
    (status,) = shown["topics"]
    by_verb = verb(capsys, server, "pipeline", "status")
    (same,) = [one for one in by_verb["topics"] if one["topic"] == MOVED]
    passing = {"lag_ms": 0, "table_time_us": 0}  # of the moment at which each was asked
    assert {**status, **passing} == {**same, **passing}
    assert (status["table_end"], status["lag_rows"], shown["mover"], shown["next"]) == (30, 10, "never ran", None)
    assert set(by_verb) <= set(shown)


def test_proofs_run_one_at_a_time_and_can_be_cancelled(server: Server, http: Http) -> None:
    first = ok(http.post("/v1/verify", json={"topic": MOVED}), 202)
    second = ok(http.post("/v1/verify", json={}), 202)
    third = ok(http.post("/v1/verify", json={"topic": MOVED}), 202)
    assert ok(http.get(f"/v1/verify/{second['id']}"))["state"] == "queued"
    assert ok(http.delete(f"/v1/verify/{second['id']}"))["state"] == "cancelled"
    done = _ended(http, first["id"])
    assert (done["state"], done["error"], done["rows"]) == ("done", None, done["total"])
    assert done["total"] == 70, "30 rows of the table twice, and 10 of the log"
    (proof,) = done["result"]["topics"]
    assert (done["result"]["proven"], proof["in_table"], proof["in_log"]) == (True, 30, 10)
    for _ in range(600):
        if ok(http.get(f"/v1/verify/{third['id']}"))["state"] == "running":
            break
        pause(0.05)
    assert ok(http.delete(f"/v1/verify/{third['id']}"))["state"] == "cancelled"
    states = [one["state"] for one in ok(http.get("/v1/verify"))["items"]]
    assert states == ["done", "cancelled", "cancelled"]
    ok(http.delete(f"/v1/verify/{first['id']}"))
    refused(http.get(f"/v1/verify/{first['id']}"), 404, "job_not_found")
    refused(http.post("/v1/verify", json={"topic": "/shop/nothing"}), 404, "topic_not_found")


def _ended(http: Http, job: str) -> Any:
    for _ in range(1_200):
        found = ok(http.get(f"/v1/verify/{job}"))
        if found["state"] in ENDED:
            return found
        pause(0.05)
    raise AssertionError(f"it never ended: {found}")


def test_a_body_has_a_limit_however_it_is_sent(http: Http) -> None:
    kind = {"content-type": "application/json"}
    refused(http.post("/v1/topics", content=b" " * 1_100_000, headers=kind), 413, "body_too_large")
    chunks = (b" " * 100_000 for _ in range(11))
    refused(http.post("/v1/topics", content=chunks, headers=kind), 413, "body_too_large")


def test_another_site_can_change_nothing_through_a_browser(http: Http) -> None:
    """No CORS; and what a form can send is not JSON by its type."""
    answer = http.options(
        "/v1/topics", headers={"origin": "http://evil.example", "access-control-request-method": "POST"}
    )
    assert "access-control-allow-origin" not in answer.headers
    plain = http.post("/v1/topics", content=b'{"topic": "/a/form"}', headers={"content-type": "text/plain"})
    refused(plain, 400, "invalid_input")

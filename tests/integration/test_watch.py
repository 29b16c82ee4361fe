"""What a real server shows of itself: figures of the broker, and whether tables are as fresh as they are to be."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc.aio
import httpx
import pytest

from frazil.core.settings import make_settings
from parts.danube import TOPIC, Server, connect, producer, serving, subscriber
from parts.exposition import samples
from parts.movers import Place, answer, run, wait_until
from parts.otlp import Receiver, attributes, receiving

pytestmark = pytest.mark.timeout(180)


def test_sends_deliveries_and_answers_are_counted(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client) as receiver:
            for number in range(5):
                await sender.send(f"m{number}".encode())
            messages = await receiver.take(5, ack=False)
            for message in messages[:3]:
                await receiver.consumer.ack(message)
            await receiver.consumer.nack(messages[3])
            await receiver.take(1)
            found = samples(server.http)
            with pytest.raises(grpc.aio.AioRpcError):
                async with subscriber(client, "other"):
                    pass
        by = ("s", TOPIC)
        assert (found["frazil_broker_sends_total",], found["frazil_broker_sent_bytes_total",]) == (5, 10)
        assert (found["frazil_broker_producers",], found["frazil_broker_consumers",]) == (1, 1)
        assert found["frazil_subscription_deliveries_total", *by] == 6
        assert found["frazil_subscription_redeliveries_total", *by] == 1
        assert found["frazil_subscription_acks_total", *by] == 4
        assert found["frazil_subscription_nacks_total", *by] == 1
        assert found["frazil_subscription_lag_messages", *by] == 1
        assert found["frazil_subscription_in_flight_messages", *by] == 1
        assert found["frazil_subscription_consumers", *by] == 1
        await client_gone(server)
        assert samples(server.http)["frazil_broker_refused_total", "subscription_taken"] == 1

    async def client_gone(server: Server) -> None:
        await asyncio.to_thread(
            wait_until, lambda: samples(server.http)["frazil_subscription_consumers", "s", TOPIC] == 0
        )

    with serving(tmp_path, redelivery_delay_ms=20) as server:
        asyncio.run(asyncio.wait_for(work(server), 60))


def test_what_is_given_up_and_what_is_not_taken_is_counted(tmp_path: Path) -> None:
    async def work(server: Server) -> None:
        client = await connect(server)
        sender = await producer(client)
        async with subscriber(client) as receiver:
            await sender.send(b"bad")
            await receiver.consumer.nack((await receiver.take(1, ack=False))[0])
            counts = ("frazil_subscription_dead_letters_total", "s", TOPIC)
            await asyncio.to_thread(wait_until, lambda: samples(server.http)[counts] == 1)
            found = samples(server.http)
        assert found["frazil_subscription_acks_total", "s", TOPIC] == 0
        assert found["frazil_subscription_lag_messages", "s", TOPIC] == 0
        assert found["frazil_topic_messages", f"{TOPIC}-dead-letter"] == 1

    with serving(tmp_path, redeliveries_max=0, poison="dead_letter") as server:
        asyncio.run(asyncio.wait_for(work(server), 60))


def test_a_missed_objective_makes_it_unready_until_the_table_has_caught_up(tmp_path: Path, connect: str) -> None:
    with receiving() as receiver:
        traces = {"endpoint": receiver.endpoint, "sample_ratio": 1}
        server = Server(tmp_path, others={"topics": {TOPIC: {"freshness_objective_ms": 300}}, "traces": traces})
        server.start()
        try:
            miss_and_catch_up(server, connect)
            the_way_is_traced(receiver)
        finally:
            server.kill()


def miss_and_catch_up(server: Server, connect: str) -> None:
    assert ready(server.http).status_code == 200
    asyncio.run(asyncio.wait_for(send(server, b"tea"), 60))
    wait_until(lambda: ready(server.http).status_code == 503)
    told = ready(server.http).json()
    (reason,) = told["reasons"]
    assert (told["status"], reason["topic"], reason["error"]) == ("degraded", TOPIC, "freshness_objective_missed")
    assert (reason["lag_rows"], reason["objective_ms"]) == (1, 300)
    assert reason["freshness_ms"] > 300
    assert "the objective is 0.3 s; no mover has ever run here; see frazil pipeline status" in reason["message"]
    found = samples(server.http)
    assert (found["frazil_ready",], found["frazil_freshness_objective_missed", TOPIC]) == (0, 1)
    assert found["frazil_freshness_objective_seconds", TOPIC] == 0.3
    assert found["frazil_table_freshness_seconds", TOPIC] > 0.3

    data = server.folder / "data"
    place = Place(data, server.folder / "frazil.yaml", make_settings({"data": data}))
    assert answer(run(place, "pipeline", "run", "--once", "--json", "--remote", connect))["rows"] == 1
    assert ready(server.http).status_code == 200
    found = samples(server.http)
    assert (found["frazil_ready",], found["frazil_freshness_objective_missed", TOPIC]) == (1, 0)
    assert (found["frazil_table_lag_rows", TOPIC], found["frazil_table_freshness_seconds", TOPIC]) == (0, 0)
    assert (found["frazil_mover_rows_total",], found["frazil_mover_commits_total",]) == (1, 1)
    assert (found["frazil_mover_failures_total",], found["frazil_mover_alive",]) == (0, 0)
    assert found["frazil_table_last_commit_timestamp_seconds", TOPIC] > 1_700_000_000
    assert found["frazil_table_last_move_seconds", TOPIC] > 0


def the_way_is_traced(receiver: Receiver) -> None:
    spans = {one.name: one for one in receiver.wait_for(lambda found: len(found) >= 4)}
    assert list(spans) == [f"publish {TOPIC}", "commit", "move", "visible"]
    publish, commit, move, visible = spans.values()
    assert {one.trace_id for one in spans.values()} == {publish.trace_id}
    assert {one.parent_span_id for one in (commit, move, visible)} == {publish.span_id}
    assert {attributes(one)["frazil.offset"] for one in spans.values()} == {0}
    assert publish.end_time_unix_nano <= move.start_time_unix_nano <= move.end_time_unix_nano
    assert move.end_time_unix_nano == visible.start_time_unix_nano <= visible.end_time_unix_nano
    assert int(attributes(visible)["frazil.snapshot_id"]) > 0


async def send(server: Server, payload: bytes) -> None:
    sender = await producer(await connect(server))
    await sender.send(payload)


def ready(address: str) -> httpx.Response:
    return httpx.get(f"{address}/health/ready", timeout=30)

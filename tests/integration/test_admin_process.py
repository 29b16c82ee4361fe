"""The admin door of servers that are killed, stopped, without a broker, or as the page on operating shows."""

from __future__ import annotations

import contextlib
import json
import subprocess
from pathlib import Path

import psutil
from admin_http import Http, ok, refused, run

from parts.danube import TOPIC, connect, producer, serving, subscriber
from parts.processes import pause


def test_without_a_broker_topics_work_and_the_rest_says_how_to_switch_it_on(tmp_path: Path) -> None:
    with serving(tmp_path, enabled=False) as server, contextlib.closing(Http(server.http)) as http:
        ok(http.post("/v1/topics", json={"topic": "/a/b", "partitions": 2}), 201)
        assert ok(http.get("/v1/topics/a/b-part-0"))["subscriptions"] is None
        for path in ("/v1/topics/a/b-part-0/subscriptions", "/v1/topics/a/b-part-0/producers", "/v1/schemas"):
            assert "broker.enabled" in refused(http.get(path), 409, "broker_off")["message"]
        refused(http.post("/v1/topics", json={"topic": "/a/c", "reliable": False}), 409, "broker_off")
        ok(http.delete("/v1/topics/a/b-part-0"))
        refused(http.get("/v1/topics/a/b-part-0"), 404, "topic_not_found")


def test_what_was_answered_outlives_a_kill(tmp_path: Path) -> None:
    with serving(tmp_path, progress_flush_ms=60_000) as server:

        async def work() -> None:
            client = await connect(server)
            sender = await producer(client)
            for name in ("s", "gone"):
                async with subscriber(client, topic=TOPIC, subscription=name):
                    pass
            for number in range(5):
                await sender.send(str(number).encode())
            http = Http(server.http)
            ok(http.post(f"/v1/topics{TOPIC}/subscriptions/s/reset", json={"to": "offset", "offset": 3}))
            ok(http.delete(f"/v1/topics{TOPIC}/subscriptions/gone"))
            http.close()

        run(work())
        server.kill()
        server.start()

        async def look() -> None:
            client = await connect(server)
            async with subscriber(client) as receiver:
                assert await receiver.texts(2) == ["3", "4"]

        run(look())
        with contextlib.closing(Http(server.http)) as http:
            (left,) = ok(http.get(f"/v1/topics{TOPIC}/subscriptions"))["items"]
            assert left["subscription"] == "s"
            refused(http.delete(f"/v1/topics{TOPIC}"), 409, "topic_in_use")


def test_a_proof_ends_with_the_server(tmp_path: Path) -> None:
    with serving(tmp_path) as server, contextlib.closing(Http(server.http)) as http:
        job = ok(http.post("/v1/verify", json={}), 202)
        assert server.process is not None
        children: list[psutil.Process] = []
        for _ in range(200):
            children = psutil.Process(server.process.pid).children(recursive=True)
            if children:
                break
            pause(0.05)
        assert children, ok(http.get(f"/v1/verify/{job['id']}"))
        assert server.stop() == 0
        gone, alive = psutil.wait_procs(children, timeout=10)
        assert gone
        assert not alive
        assert "Traceback" not in server.log()


def test_the_commands_of_the_page_on_operating_run(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "operate.md").read_text(encoding="utf-8")
    commands = [line[2:] for line in page.splitlines() if line.startswith("$ curl ")]
    assert len(commands) > 10
    with serving(tmp_path) as server:

        async def work() -> None:
            client = await connect(server)
            await producer(client, "/shop/orders")
            async with subscriber(client, topic="/shop/orders", subscription="cooks"):
                pass

        for command in commands:
            if command.endswith("/subscriptions"):
                run(work())
            told = command.replace("http://127.0.0.1:6680", server.http)
            done = subprocess.run(["bash", "-c", told], capture_output=True, text=True, timeout=60)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
            json.loads(done.stdout)

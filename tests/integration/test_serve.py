"""`frazil serve` as a real process: health, metrics and topics over HTTP, and a clean end."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import frazil

TOPIC = "/default/orders"
DEADLINE_SECONDS = 30


class Serving(NamedTuple):
    process: subprocess.Popen[bytes]
    address: str
    data: Path

    def get(self, path: str) -> httpx.Response:
        return httpx.get(self.address + path, timeout=DEADLINE_SECONDS)

    def ready(self) -> httpx.Response:
        """The answer once all topics were tried."""
        for _ in range(10_000):
            answer = self.get("/health/ready")
            if answer.json()["status"] != "opening":
                return answer
        raise AssertionError("never ready")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[int, str]:
        self.process.send_signal(number)
        _, error = self.process.communicate(timeout=10)
        return self.process.returncode, error.decode()


def command(data: Path, *arguments: str) -> list[str]:
    run = "from frazil.cli.main import run; run()"
    return [
        sys.executable,
        "-c",
        run,
        "serve",
        "--data",
        str(data),
        "--no-pipeline",
        "--flight-port",
        "0",
        "--broker-port",
        "0",
        "--admin-port",
        "0",
        *arguments,
    ]


@contextlib.contextmanager
def serving(data: Path, *arguments: str) -> Iterator[Serving]:
    environment = {**os.environ, "FRAZIL_DATA": "", "FRAZIL_CONFIG": ""}
    with subprocess.Popen(
        command(data, "--port", "0", "--json", *arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        try:
            assert process.stdout is not None
            announced = json.loads(process.stdout.readline())
            assert announced["data"] == str(data)
            yield Serving(process, announced["address"], data)
        finally:
            if process.poll() is None:
                process.kill()


def fill(data: Path, *names: str) -> None:
    with frazil.open(data) as storage:
        for name in names:
            storage.topic(name).publish_many([b"x" * 100] * 3)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_with_success_and_gives_the_folder_back(tmp_path: Path, number: signal.Signals) -> None:
    with serving(tmp_path) as server:
        assert server.get("/health/live").json() == {"status": "live"}
        code, error = server.stop(number)
    assert code == 0, error
    assert "Traceback" not in error
    frazil.open(tmp_path).close()


def test_it_says_where_it_listens_in_one_line(tmp_path: Path) -> None:
    with subprocess.Popen(
        command(tmp_path, "--port", "0"), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        process.send_signal(signal.SIGTERM)
        assert process.wait(DEADLINE_SECONDS) == 0
        assert process.stdout.read() == b""
    assert line.startswith("frazil listens on http://127.0.0.1:")
    assert line.endswith(f", data in {tmp_path}\n")


def test_topics_are_listed_in_pages_and_described(tmp_path: Path) -> None:
    names = ["/a/x", "/a-b/x", "/b/y", "/b/z"]
    fill(tmp_path, *names)
    with serving(tmp_path) as server:
        answer = server.ready()
        assert (answer.status_code, answer.json()) == (
            200,
            {"status": "ready", "opened": 4, "topics": 4, "warnings": []},
        )
        seen: list[str] = []
        after: str | None = None
        while True:
            page = server.get(f"/v1/topics?limit=3{f'&after={after}' if after else ''}").json()
            seen += [topic["topic"] for topic in page["items"]]
            after = page["next"]
            if after is None:
                break
        assert sorted(seen) == sorted(names)
        stats = server.get("/v1/topics/a-b/x").json()
        assert (stats["topic"], stats["messages"], stats["end"]) == ("/a-b/x", 3, 3)


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/v1/topics/a/absent", 404, "topic_not_found"),
        ("/v1/topics/a/b%20c", 400, "invalid_name"),
        ("/v1/topics?limit=0", 400, "invalid_input"),
        ("/v1/topics?limit=x", 400, "invalid_input"),
        ("/v1/topics?after=x", 400, "invalid_name"),
        ("/nothing", 404, "not_found"),
    ],
)
def test_every_error_is_json_with_a_code(server: Serving, path: str, status: int, code: str) -> None:
    answer = server.get(path)
    assert (answer.status_code, answer.json()["error"]) == (status, code)
    assert answer.json()["message"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    data = tmp_path_factory.mktemp("served")
    fill(data, TOPIC)
    with serving(data) as server:
        yield server


def test_asking_for_a_topic_does_not_make_it(server: Serving) -> None:
    server.get("/v1/topics/a/absent")
    assert [one["topic"] for one in server.get("/v1/topics").json()["items"]] == [TOPIC]


def test_metrics_are_valid_and_carry_the_topics(server: Serving) -> None:
    server.ready()
    answer = server.get("/metrics")
    samples = {
        (sample.name, sample.labels.get("topic")): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }
    assert all(name.startswith("frazil_") for name, _ in samples)
    assert samples["frazil_topic_messages", TOPIC] == 3
    assert samples["frazil_topics", None] == 1
    assert samples["frazil_ready", None] == 1
    assert samples["frazil_log_sync_seconds_count", None] == 0
    assert samples["frazil_disk_used_bytes", None] > 0


def test_a_second_process_on_the_folder_is_told_the_owners_pid(server: Serving) -> None:
    second = subprocess.run(
        command(server.data, "--port", "0"), capture_output=True, text=True, timeout=DEADLINE_SECONDS
    )
    assert second.returncode == 6
    assert f"process {server.process.pid}" in second.stderr
    assert second.stderr.startswith("error: ")
    assert second.stderr.count("\n") == 1


def test_a_port_in_use_is_one_line_and_gives_the_folder_back(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            command(tmp_path, "--port", str(port)), capture_output=True, text=True, timeout=DEADLINE_SECONDS
        )
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: cannot listen on 127.0.0.1:{port}")
    assert done.stderr.count("\n") == 1


def test_a_corrupt_topic_makes_it_unready_but_the_others_work(tmp_path: Path) -> None:
    fill(tmp_path, TOPIC, "/default/good")
    (segment,) = (tmp_path / "log" / "default" / "orders").glob("*.wal")
    segment.write_bytes(b"\xff" * 64 + segment.read_bytes()[64:])
    with serving(tmp_path, "--log-json") as server:
        answer = server.ready()
        assert answer.status_code == 503
        (reason,) = answer.json()["reasons"]
        assert (reason["topic"], reason["error"], reason["position"]) == (TOPIC, "corrupt_log", 0)
        assert server.get("/v1/topics/default/good").json()["messages"] == 3
        broken = server.get("/v1/topics/default/orders").json()
        assert (broken["topic"], broken["end"], broken["durable_end"]) == (TOPIC, None, None)
        assert "is corrupt at byte 0" in broken["problem"]
        assert "frazil_topics_broken 1.0" in server.get("/metrics").text
        code, error = server.stop()
    assert code == 0
    events = [json.loads(line) for line in error.splitlines()]
    assert {event["level"] for event in events} == {"info", "error"}
    assert any(event.get("topic") == TOPIC for event in events)
    assert events[-1]["message"] == "stopped"

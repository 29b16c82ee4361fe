"""`frazil top` beside a real server under load: once for scripts, on a terminal, and when the server goes away."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import frazil
from parts.danube import Server, serving

pytestmark = pytest.mark.timeout(180)

TOPIC = "/load/orders"
DEADLINE_SECONDS = 60
_CONTROLS = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


@contextlib.contextmanager
def load(server: Server) -> Iterator[None]:
    """Someone publishes, and someone subscribes and acknowledges nothing."""
    stop = threading.Event()
    with frazil.connect(server.flight) as storage, storage.topic(TOPIC).subscribe("slow"):
        topic = storage.topic(TOPIC)

        def publish() -> None:
            while not stop.wait(0.01):
                topic.publish_many([b"x" * 100] * 10)

        publisher = threading.Thread(target=publish)
        publisher.start()
        try:
            yield
        finally:
            stop.set()
            publisher.join()


def command(server: Server, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "frazil", "top", "--data", str(server.folder / "data"), *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "FRAZIL_CONFIG": "", "FRAZIL_SERVER": "", "TERM": "xterm", "PYTHONWARNINGS": "error"}


def test_once_tells_scripts_of_rates_latencies_and_lag(tmp_path: Path) -> None:
    with serving(tmp_path) as server, load(server):
        done = subprocess.run(
            command(server, "--once", "--json", "--interval", "1s"),
            capture_output=True, env=environment(), timeout=DEADLINE_SECONDS,
        )  # fmt: skip
        plain = subprocess.run(
            command(server, "--once", "--interval", "500ms"),
            capture_output=True, env=environment(), timeout=DEADLINE_SECONDS,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["address"] == server.http
    assert found["server"]["ready"] is True
    assert found["server"]["rows_per_second"] > 0
    assert 0 < found["server"]["ack_p50_ms"] <= found["server"]["ack_p99_ms"]
    assert found["server"]["sync_p99_ms"] > 0
    (topic,) = found["topics"]
    assert (topic["topic"], topic["end"] > 0) == (TOPIC, True)
    assert topic["rows_per_second"] > 0
    assert topic["bytes_per_second"] > 100
    (subscription,) = found["subscriptions"]
    assert (subscription["subscription"], subscription["consumers"]) == ("slow", 1)
    assert subscription["lag"] > 0
    assert plain.returncode == 0, plain.stderr
    assert TOPIC in plain.stdout.decode()
    assert b"\x1b" not in plain.stdout


def test_a_terminal_shows_it_live_and_outlives_the_server(tmp_path: Path) -> None:
    """The server comes back on another port: it is found again by the folder."""
    server = Server(tmp_path)
    server.start()
    try:
        with frazil.connect(server.flight) as storage:
            storage.topic(TOPIC).publish("tea")
        with on_terminal(command(server, "--interval", "200ms"), columns=60, rows=16) as terminal:
            terminal.until(rb"ready", TOPIC.encode())
            before = server.http
            server.kill()
            terminal.until(rb"no answer")
            server.start()
            assert server.http != before
            terminal.until(server.http.encode() + rb" +ready", TOPIC.encode())
            terminal.process.send_signal(signal.SIGTERM)
            terminal.until(re.escape(b"\x1b[?1049l"), plain=False)  # back from the alternate screen
            assert terminal.process.wait(DEADLINE_SECONDS) == 0
    finally:
        server.kill()


def test_a_pipe_gets_an_object_a_line_and_is_told_once_that_the_server_is_away(tmp_path: Path) -> None:
    with (
        serving(tmp_path) as server,
        subprocess.Popen(
            command(server, "--interval", "200ms", "--json"),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
        ) as top,
    ):  # fmt: skip
        assert top.stdout is not None
        assert top.stderr is not None
        assert all(json.loads(top.stdout.readline())["server"]["ready"] for _ in range(2))
        server.kill()
        assert b"waiting for it" in top.stderr.readline()
        server.start()
        assert json.loads(top.stdout.readline())["topics"] == []
        top.send_signal(signal.SIGINT)
        assert top.wait(DEADLINE_SECONDS) == 0
        assert top.stderr.read() == b""


def test_without_a_server_it_says_what_to_do(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "frazil", "top", "--once", "--data", str(tmp_path)],
        capture_output=True, env=environment(), timeout=DEADLINE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 7
    assert b"frazil serve" in done.stderr


class Terminal:
    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self._fd = fd
        self.seen = b""

    def until(self, *patterns: bytes, plain: bool = True) -> None:
        """What is drawn from now on, until it has all of these; plain: without what moves the cursor."""
        self.seen = b""
        deadline = time.monotonic() + DEADLINE_SECONDS
        while not all(re.search(each, _CONTROLS.sub(b"", self.seen) if plain else self.seen) for each in patterns):
            assert time.monotonic() < deadline, self.seen[-2000:]
            if select.select([self._fd], [], [], 1)[0]:
                self.seen += os.read(self._fd, 65536)


@contextlib.contextmanager
def on_terminal(words: list[str], columns: int, rows: int) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    sized: dict[str, Any] = {name: value for name, value in environment().items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        words, stdin=theirs, stdout=theirs, stderr=theirs, env=sized, start_new_session=True, close_fds=True
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(ours)

"""The cluster for trial starts, answers, and leaves no process behind."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from parts.movers import environment
from parts.processes import accepts

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "cluster.py"
PORTS = 30


def free_ports() -> int:
    """Return the first of some ports that are all free."""
    for first in range(20_000 + os.getpid() % 100 * 50, 30_000, 50):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            for port in range(first, first + PORTS):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise AssertionError("no ports are free")


def started(folder: Path, port: int) -> tuple[subprocess.Popen[str], str]:
    """Return the process, and the usage that it prints once all answer."""
    command = [sys.executable, str(SCRIPT), "--brokers", "1", "--folder", str(folder), "--port", str(port)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())
    assert process.stdout is not None
    lines: list[str] = []
    while not lines or not lines[-1].startswith("Ctrl-C"):
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        lines.append(line)
    return process, "".join(lines)


@pytest.mark.timeout(120)
def test_the_cluster_for_trial_starts_answers_and_leaves_nothing_behind(tmp_path: Path) -> None:
    port = free_ports()
    process, usage = started(tmp_path / "trial", port)
    try:
        server = f"http://127.0.0.1:{port + 10}"
        assert f"FRAZIL_SERVER={server}" in usage
        with httpx.Client(base_url=server, timeout=30) as http:
            made = http.post("/v1/topics", json={"topic": "/default/orders", "ack": "object"})
            assert made.status_code in (200, 201), made.text
            owners = http.get("/v1/topics/default/orders/owner").json()["owners"]
        assert [one["broker_id"] for one in owners] == ["b1"]
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        process.communicate()
    assert not [one for one in range(port, port + PORTS) if accepts(one)], "a process still listens"


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    port = free_ports()
    with socket.create_server(("127.0.0.1", port + 1)):
        command = [sys.executable, str(SCRIPT), "--folder", str(tmp_path / "trial"), "--port", str(port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert done.returncode == 1
    assert f"port {port + 1} is in use; choose others with --port" in done.stderr

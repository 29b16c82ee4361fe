"""`frazil serve --telemetry`: the doors for OTLP, where the options say."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from parts.otlp_senders import grpc_sender, http_sender

pytestmark = pytest.mark.timeout(120)

OTHERS = ("--port", "--flight-port", "--broker-port", "--admin-port")


def command(data: Path, *options: str) -> list[str]:
    free = [word for option in OTHERS for word in (option, "0")]
    return [sys.executable, "-m", "frazil", "serve", "--no-pipeline", "--json", "--data", str(data), *free, *options]


def environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("FRAZIL_")}


def test_exporters_send_to_the_ports_of_the_options(tmp_path: Path) -> None:
    options = ("--telemetry", "--otlp-host", "127.0.0.1", "--otlp-grpc-port", "0", "--otlp-http-port", "0")
    with subprocess.Popen(command(tmp_path, *options), stdout=subprocess.PIPE, env=environment()) as process:
        try:
            assert process.stdout is not None
            found = json.loads(process.stdout.readline())
            grpc_sender("traces")(found["otlp_grpc"], {})
            http_sender("logs")(found["otlp_http"], {})
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert not found["otlp_grpc"].endswith(":4317")
    assert not found["otlp_http"].endswith(":4318")


@pytest.mark.parametrize("option", ["--otlp-grpc-port", "--otlp-http-port"])
def test_a_port_that_is_taken_is_named_with_its_option(tmp_path: Path, option: str) -> None:
    other = {"--otlp-grpc-port": "--otlp-http-port"}.get(option, "--otlp-grpc-port")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = command(tmp_path, "--telemetry", other, "0", option, port)
        done = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode != 0
    assert f"cannot listen on 127.0.0.1:{port}" in done.stderr
    assert f"{option} or telemetry.otlp." in done.stderr


def test_a_port_for_doors_that_are_not_opened_is_refused(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path, "--otlp-grpc-port", "0"), capture_output=True, text=True, env=environment(), timeout=60
    )
    assert done.returncode != 0
    assert "--telemetry" in done.stderr
    assert "Traceback" not in done.stderr

"""What stock senders have sent, asked of a real server: by its tenant, by another one, and by an administrator."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry._logs import LogRecord, SeverityNumber
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.trace import Status, StatusCode

from parts.movers import environment
from parts.otlp_server import TelemetryServer
from parts.processes import pause

pytestmark = pytest.mark.timeout(240)
RESOURCE = Resource({"service.name": "shop"})
WAIT_SECONDS = 90


class Asked(TelemetryServer):
    """A served folder, and the verbs on it with the keys of tenants."""

    def command(self, *words: str, key: str | None) -> tuple[list[str], dict[str, str]]:
        where = ["--data", str(self.folder / "data")] if key is None else ["--server", self.http]
        told = {} if key is None else {"FRAZIL_CLIENT__TOKEN": key}
        command = [sys.executable, "-m", "frazil", *words, *where, "--config", str(self._config), "--json"]
        return command, environment() | told

    def ask(self, *words: str, key: str | None = None, code: int = 0) -> Any:
        command, variables = self.command(*words, key=key)
        done = subprocess.run(command, capture_output=True, text=True, env=variables, timeout=WAIT_SECONDS)
        assert done.returncode == code, done.stdout + done.stderr
        if code:
            return json.loads(done.stderr.splitlines()[-1])
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    server = Asked(tmp_path_factory.mktemp("asked"), security=True, own=True, own_interval_ms=1_000)
    server.start()
    try:
        yield server
        assert "Traceback" not in server.log()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def keys(server: Asked) -> dict[str, str]:
    return {name: server.ask("tenants", "create", name)[0]["key"]["key"] for name in ("acme", "bank")}


def headers(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


class Logger:
    """Sends each record at once, and returns when the server has stored it."""

    def __init__(self, server: Asked, key: str) -> None:
        exporter = OTLPLogExporter(endpoint=f"{server.otlp}/v1/logs", headers=headers(key))
        self._provider = LoggerProvider(resource=RESOURCE)
        self._provider.add_log_record_processor(SimpleLogRecordProcessor(exporter))
        self._logger = self._provider.get_logger("tests")

    def log(self, body: str, severity: SeverityNumber = SeverityNumber.INFO) -> None:
        self._logger.emit(LogRecord(severity_number=severity, body=body))

    def close(self) -> None:
        self._provider.shutdown()


def test_a_trace_is_drawn_for_its_tenant_alone(server: Asked, keys: dict[str, str]) -> None:
    provider = TracerProvider(resource=RESOURCE)
    exporter = OTLPSpanExporter(endpoint=f"{server.otlp}/v1/traces", headers=headers(keys["acme"]))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracer = provider.get_tracer("tests")
    with tracer.start_as_current_span("GET /cart") as root, tracer.start_as_current_span("pay") as below:
        below.set_status(Status(StatusCode.ERROR, "declined"))
    provider.shutdown()
    trace_id = f"{root.get_span_context().trace_id:032x}"
    (listed,) = server.ask("traces", "list", "--errors", key=keys["acme"])
    assert [(one["trace_id"], one["root"], one["spans"], one["errors"]) for one in listed] == [
        (trace_id, "GET /cart", 2, 1)
    ]
    (drawn,) = server.ask("traces", "show", trace_id, key=keys["acme"])
    assert [(one["name"], one["depth"], one["status_message"]) for one in drawn["spans"]] == [
        ("GET /cart", 0, ""), ("pay", 1, "declined")
    ]  # fmt: skip
    assert server.ask("traces", "show", trace_id, "--tenant", "acme") == [drawn]  # next to the server
    refusals = [
        server.ask("traces", "show", trace_id, "--tenant", tenant, key=keys["bank"], code=code)
        for tenant, code in (("acme", 1), ("nobody", 1))
    ]
    assert str(refusals[0]).replace("acme", "nobody") == str(refusals[1])


def test_records_are_followed_without_a_gap_or_a_double(server: Asked, keys: dict[str, str]) -> None:
    """Senders go on while the follower changes over from what is stored to what comes."""
    logger, stop, sent = Logger(server, keys["acme"]), threading.Event(), 0
    for _ in range(5):
        logger.log(f"record {sent}")
        sent += 1

    def work() -> None:
        nonlocal sent
        while not stop.is_set():
            logger.log(f"record {sent}", SeverityNumber.ERROR if sent % 2 else SeverityNumber.INFO)
            sent += 1

    sender = threading.Thread(target=work)
    words = ["logs", "tail", "-f", "-n", "100000", "--service", "shop", "--text", "record"]
    command, variables = server.command(*words, key=keys["acme"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        sender.start()
        try:
            first = follower.stdout.readline()
        finally:
            pause(1.0)
            stop.set()
            sender.join()
            logger.log("record of the end")
            logger.close()
        seen = [json.loads(first)["body"]]
        while seen[-1] != "record of the end":
            line = follower.stdout.readline()
            assert line, follower.stderr.read()
            seen.append(json.loads(line)["body"])
        follower.send_signal(signal.SIGINT)
        assert follower.wait(WAIT_SECONDS) == 130
        assert follower.stderr.read() == b""
    assert sorted(seen[:-1], key=lambda body: int(body.split()[1])) == [f"record {number}" for number in range(sent)]
    bad = server.ask("logs", "tail", "--severity", "error", "-n", "100000", key=keys["acme"])
    assert [one["body"] for one in bad] == [f"record {number}" for number in range(5, sent) if number % 2]
    refused = server.ask("logs", "tail", "-f", "--tenant", "acme", key=keys["bank"], code=1)
    missing = server.ask("logs", "tail", "-f", "--tenant", "nobody", key=keys["bank"], code=1)
    assert str(refused).replace("acme", "nobody") == str(missing)


def test_a_reader_that_goes_away_ends_the_follower_quietly(server: Asked, keys: dict[str, str]) -> None:
    logger = Logger(server, keys["bank"])
    logger.log("one")
    command, variables = server.command("logs", "tail", "-f", key=keys["bank"])
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=variables) as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        follower.stdout.readline()
        follower.stdout.close()
        while follower.poll() is None:
            logger.log("another")
            pause(0.05)
        assert follower.wait(WAIT_SECONDS) == 0
        assert follower.stderr.read() == b""
    logger.close()


def test_tables_of_others_look_as_missing_ones_in_sql(server: Asked, keys: dict[str, str]) -> None:
    logger = Logger(server, keys["acme"])
    logger.log("secret")
    logger.close()
    query = 'select count(*) as n from "{}.default".{}'
    assert server.ask("sql", query.format("acme", "logs"), key=keys["acme"])[0]["n"] > 0
    for table in ("logs", "logs__errors", "traces"):
        told = [
            server.ask("sql", query.format(tenant, table), key=keys["bank"], code=2)["message"]
            for tenant in ("acme", "nobody", "_frazil")
        ]
        assert told[0].replace("acme", "nobody") == told[1]
        assert told[2].replace("_frazil", "nobody") == told[1]


def test_the_server_itself_is_seen_by_its_administrator(server: Asked, keys: dict[str, str]) -> None:
    admin = server.ask("keys", "create", "root", "--role", "admin")[0]["key"]
    for key in (None, admin):
        records = server.ask("logs", "tail", "--tenant", "_frazil", "-n", "1000", key=key)
        assert "frazil" in {one["service_name"] for one in records}
        (found,) = server.ask("metrics", "list", "--tenant", "_frazil", key=key)
        assert "frazil_cache_used_bytes" in {one["metric"] for one in found}
    assert "_frazil" not in {one["tenant"] for one in server.ask("tenants", "list", key=keys["acme"])[0]}
    assert server.ask("logs", "tail", "--tenant", "_frazil", key=keys["acme"], code=1)["error"] == "permission_denied"

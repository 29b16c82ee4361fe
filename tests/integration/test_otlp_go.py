"""Stock senders in another language: OpenTelemetry's exporters in Go, and its generator of telemetry."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from frazil.telemetry.signals import Signal
from parts.otlp_expected import START_NS, named, plain
from parts.otlp_server import Stored, TelemetryServer, serving
from parts.processes import PARTS, part

HAS_EXPORTERS = (PARTS / "otlp-go").exists()
pytestmark = [
    pytest.mark.skipif(not HAS_EXPORTERS, reason="the senders could not be built here; `make parts` says why"),
    pytest.mark.timeout(180),
    pytest.mark.xdist_group("otlp"),
]

ATTRIBUTES = {
    "text": "tea 🍵",
    "empty": "",
    "large": 2**63 - 1,
    "fraction": 0.1,
    "flag": True,
    "texts": ("a", "", "b"),
    "numbers": (1, 2),
    "fractions": (0.5,),
    "flags": (True, False),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TelemetryServer]:
    with serving(tmp_path_factory.mktemp("otlp")) as found:
        yield found


def run(name: str, *words: str) -> None:
    done = subprocess.run([str(part(name)), *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def address(server: TelemetryServer, kind: str) -> str:
    return (server.grpc if kind == "grpc" else server.otlp).rpartition("/")[2]


@pytest.mark.parametrize("gzip", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_its_exporters_send_every_signal_and_the_log_has_all_of_it(
    server: TelemetryServer, kind: str, gzip: bool
) -> None:
    tenant = f"go-{kind}-{gzip}".lower()
    run("otlp-go", kind, address(server, kind), f"x-frazil-tenant={tenant}", *(["gzip"] if gzip else []))
    check_spans(server.requests(Signal.TRACES, tenant))
    check_records(server.requests(Signal.LOGS, tenant))
    check_points(server.requests(Signal.METRICS, tenant))


def check_spans(stored: Stored) -> None:
    assert stored.items == [2]
    spans = {span.name: span for span in stored.messages[0].resource_spans[0].scope_spans[0].spans}
    cart, parent = spans["GET /cart"], spans["parent"]
    assert named(cart.attributes) == named(cart.events[0].attributes) == ATTRIBUTES
    assert (cart.start_time_unix_nano, cart.end_time_unix_nano) == (START_NS, START_NS + 1_000_000_007)
    assert (cart.parent_span_id, cart.links[0].span_id) == (parent.span_id, parent.span_id)
    assert sorted(row["span_name"] for row in stored.rows("traces")) == ["GET /cart", "parent"]


def check_records(stored: Stored) -> None:
    assert stored.items == [2]
    records = stored.messages[0].resource_logs[0].scope_logs[0].log_records
    deep = {"deep": (1, "er"), "bytes": b"\0\xff"}
    assert [plain(record.body) for record in records] == ["tea is ready", deep]
    assert all(named(record.attributes) == ATTRIBUTES for record in records)
    assert len(stored.rows("logs")) == 2


def check_points(stored: Stored) -> None:
    assert stored.items == [4]
    found: dict[str, Any] = {
        metric.name: metric for metric in stored.messages[0].resource_metrics[0].scope_metrics[0].metrics
    }
    assert named(found["requests"].sum.data_points[0].attributes) == ATTRIBUTES
    assert found["latency"].histogram.data_points[0].sum == 10_007.5
    assert found["sizes"].exponential_histogram.data_points[0].count == 3
    assert len(stored.rows("metrics_exponential_histogram")) == 1


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_its_generator_sends_what_the_log_then_has(server: TelemetryServer, kind: str) -> None:
    more = ["--otlp-insecure", "--otlp-endpoint", address(server, kind), *(["--otlp-http"] if kind == "http" else [])]
    header = ["--otlp-header", f'x-frazil-tenant="gen-{kind}"']
    for signal, option in ((Signal.TRACES, "traces"), (Signal.LOGS, "logs"), (Signal.METRICS, "metrics")):
        run("telemetrygen", option, f"--{option}", "7", "--workers", "1", "--rate", "0", *more, *header)
        stored = server.requests(signal, f"gen-{kind}")
        assert sum(stored.items) == (14 if signal is Signal.TRACES else 7)  # each trace has two spans
        table = {Signal.TRACES: "traces", Signal.LOGS: "logs", Signal.METRICS: "metrics"}[signal]
        assert len(stored.rows(table)) == sum(stored.items)

"""OTLP over gRPC and HTTP from the stock exporters of OpenTelemetry's Python SDK to a real `frazil serve`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from opentelemetry.exporter.otlp.proto.http import Compression

from frazil.telemetry.signals import Signal
from parts.otlp_expected import START_NS, named, plain
from parts.otlp_senders import ATTRIBUTES, grpc_sender, http_sender
from parts.otlp_server import TelemetryServer, serving

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("otlp")]

TENANT, DATASET = "x-frazil-tenant", "x-frazil-dataset"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TelemetryServer]:
    with serving(tmp_path_factory.mktemp("otlp")) as found:
        yield found


SENDERS = {
    "grpc": grpc_sender,
    "grpc-gzip": lambda signal: grpc_sender(signal, grpc.Compression.Gzip),
    "http": http_sender,
    "http-gzip": lambda signal: http_sender(signal, Compression.Gzip),
}


@pytest.mark.parametrize("how", SENDERS)
@pytest.mark.parametrize("signal", list(Signal))
def test_a_stock_exporter_sends_and_the_log_has_all_of_it(server: TelemetryServer, how: str, signal: Signal) -> None:
    address = server.grpc if how.startswith("grpc") else server.otlp
    SENDERS[how](signal.value)(address, {TENANT: how, DATASET: "sdk"})
    stored = server.requests(signal, how, "sdk")
    assert stored.items == [5] if signal is Signal.METRICS else [1] * len(stored.bytes)
    check = {Signal.TRACES: check_spans, Signal.LOGS: check_records, Signal.METRICS: check_points}[signal]
    check(stored)


def check_spans(stored: Any) -> None:
    linked, cart = (message.resource_spans[0].scope_spans[0].spans[0] for message in stored.messages)
    assert named(cart.attributes) == ATTRIBUTES
    assert named(cart.events[0].attributes) == ATTRIBUTES
    assert (cart.start_time_unix_nano, cart.end_time_unix_nano) == (START_NS, START_NS + 1_000_000_007)
    assert cart.links[0].span_id == linked.span_id
    rows = stored.rows("traces")
    assert [row["span_name"] for row in rows] == ["linked", "GET /cart"]
    assert rows[1]["trace_id"] == cart.trace_id.hex()
    assert rows[1]["duration_ns"] == 1_000_000_007
    assert dict(rows[1]["span_attributes"])["large"] == str(2**63 - 1)


def check_records(stored: Any) -> None:
    records = [message.resource_logs[0].scope_logs[0].log_records[0] for message in stored.messages]
    deep = {"deep": (1, {"er": None}), "bytes": b"\0\xff"}
    assert [plain(record.body) for record in records] == ["tea is ready", deep, ATTRIBUTES]
    assert all(named(record.attributes) == ATTRIBUTES for record in records)
    assert [row["severity_text"] for row in stored.rows("logs")] == ["warn"] * 3


def check_points(stored: Any) -> None:
    (scope,) = stored.messages[0].resource_metrics[0].scope_metrics
    found = {metric.name: metric for metric in scope.metrics}
    assert named(found["requests"].sum.data_points[0].attributes) == ATTRIBUTES
    assert found["latency"].histogram.data_points[0].sum == 10_007.5
    assert found["sizes"].exponential_histogram.data_points[0].count == 3
    decoded = stored.decoded()
    assert {name: len(rows) for name, rows in decoded.rows.items() if len(rows)} == {
        "metrics": 5, "metrics_gauge": 1, "metrics_sum": 2, "metrics_histogram": 1, "metrics_exponential_histogram": 1,
    }  # fmt: skip

"""OTLP over TLS from the stock exporters of OpenTelemetry, with keys and with client certificates."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import grpc
import httpx
import pytest
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpSpans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from frazil.telemetry.signals import Signal, topic_of_signal
from parts.movers import environment
from parts.processes import pause
from parts.secured_server import SecuredServer
from parts.telemetry import span, spans, trace

pytestmark = [pytest.mark.timeout(180), pytest.mark.xdist_group("otlp_tls")]

TELEMETRY = {"telemetry": {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}}}
TOPIC = str(topic_of_signal("acme", "default", Signal.TRACES))
SECONDS_MAX = 10


class Served:
    def __init__(self, folder: Path, *, mtls: bool = False) -> None:
        self.server = SecuredServer(folder, mtls=mtls, others=TELEMETRY)
        started = self.server.start()
        self.grpc, self.http = started["otlp_grpc"], started["otlp_http"]
        made = self.server.call("POST", "/v1/tenants", json={"tenant": "acme"})
        assert made.status_code == 201, made.text
        self.key: str = made.json()["key"]["key"]

    def stored(self) -> int:
        found = self.server.call("GET", f"/v1/topics{TOPIC}")
        return int(found.json()["messages"]) if found.status_code == 200 else 0

    def over_grpc(self, **headers: str) -> SpanExporter:
        """An exporter with the credentials of `SecuredServer.files`."""
        given = tuple(headers.items())
        return GrpcSpans(
            endpoint=self.grpc, credentials=self.server.channel_credentials(), headers=given, timeout=SECONDS_MAX
        )

    def over_http(self, **headers: str) -> SpanExporter:
        return HttpSpans(
            endpoint=f"{self.http}/v1/traces",
            certificate_file=str(self.server.files.ca),
            headers=headers,
            timeout=SECONDS_MAX,
        )


def exported(exporter: SpanExporter) -> SpanExportResult:
    """How a request with one span ended."""
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    provider.get_tracer("tests").start_span("GET /cart").end()
    try:
        return exporter.export(kept.get_finished_spans())
    finally:
        exporter.shutdown()
        provider.shutdown()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    found = Served(tmp_path_factory.mktemp("otlp-tls"))
    try:
        yield found
        assert "Traceback" not in found.server.log()
    finally:
        found.server.kill()


def test_stock_exporters_send_over_tls_with_a_key_alone(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The key is of one tenant, so that no header names it."""
    for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)  # for `requests` they count more than the exporter's own file
    assert {urlsplit(one).scheme for one in (served.grpc, served.http)} == {"https"}
    before = served.stored()
    for make in (served.over_grpc, served.over_http):
        assert exported(make(authorization=f"Bearer {served.key}")) is SpanExportResult.SUCCESS
        assert exported(make()) is SpanExportResult.FAILURE
        assert exported(make(authorization=f"Bearer {served.key[:-4]}aaaa")) is SpanExportResult.FAILURE
    assert served.stored() == before + 2


def test_neither_door_answers_without_tls(served: Served) -> None:
    with pytest.raises(httpx.TransportError):
        httpx.post(served.http.replace("https:", "http:") + "/v1/traces", timeout=SECONDS_MAX)
    with pytest.raises(httpx.TransportError):  # the client does not know the CA
        httpx.post(served.http + "/v1/traces", timeout=SECONDS_MAX)
    with grpc.insecure_channel(urlsplit(served.grpc).netloc) as channel, pytest.raises(grpc.FutureTimeoutError):
        grpc.channel_ready_future(channel).result(1)


def test_a_new_certificate_is_used_by_both_doors(tmp_path: Path) -> None:
    served = Served(tmp_path)
    files = served.server.files
    try:
        context = ssl.create_default_context(cafile=str(files.ca))
        with httpx.Client(verify=context, timeout=SECONDS_MAX) as kept:
            headers = {"authorization": f"Bearer {served.key}", "content-type": "application/x-protobuf"}
            body = spans("shop", {"trace": trace(1), "id": span(1)})
            assert kept.post(f"{served.http}/v1/traces", content=body, headers=headers).status_code == 200
            files._issue("server", ["localhost"])
            for address in (served.grpc, served.http):
                where = (urlsplit(address).hostname or "", urlsplit(address).port or 0)
                for _ in range(100):
                    if ssl.get_server_certificate(where).strip() == files.certificate.read_text().strip():
                        break
                    pause(0.1)
                else:
                    raise AssertionError(f"{address} does not show the new certificate")
            assert kept.post(f"{served.http}/v1/traces", content=body, headers=headers).status_code == 200
        assert served.stored() == 2
    finally:
        served.server.kill()


def test_a_client_certificate_sends_for_the_tenant_that_it_is_bound_to(tmp_path: Path) -> None:
    served = Served(tmp_path, mtls=True)
    server, files = served.server, served.server.files
    try:
        assert exported(served.over_grpc()) is SpanExportResult.FAILURE
        bound = {"principal": "cert:robot", "role": "tenant", "scope": "/acme.*/*"}
        assert server.call("POST", "/v1/bindings", json=bound).status_code == 201
        assert exported(served.over_grpc()) is SpanExportResult.SUCCESS
        context = ssl.create_default_context(cafile=str(files.ca))
        with pytest.raises(httpx.TransportError):
            httpx.post(f"{served.http}/v1/traces", verify=context, timeout=SECONDS_MAX)
        context.load_cert_chain(files.client_certificate, files.client_key)
        body = spans("shop", {"trace": trace(1), "id": span(1)})
        headers = {"content-type": "application/x-protobuf"}
        sent = httpx.post(f"{served.http}/v1/traces", content=body, headers=headers, verify=context)
        assert sent.status_code == 200, sent.content
        assert served.stored() == 2
    finally:
        server.kill()


@pytest.mark.parametrize("name", ["grpc_host", "http_host"])
def test_a_door_beyond_loopback_needs_security(tmp_path: Path, name: str) -> None:
    otlp: dict[str, Any] = {"grpc_port": 0, "http_port": 0, name: "0.0.0.0"}
    config = tmp_path / "frazil.yaml"
    config.write_text(json.dumps({"telemetry": {"enabled": True, "otlp": otlp}}))
    command = [sys.executable, "-m", "frazil", "serve", "--no-pipeline", "--data", str(tmp_path / "data")]
    command += ["--config", str(config)]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment())
    assert refused.returncode == 2
    assert f"telemetry.otlp.{name}: 0.0.0.0 is not a loopback address" in refused.stderr
    assert not (tmp_path / "data").exists()

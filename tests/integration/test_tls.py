"""TLS on every door of a real `frazil serve`, with stock clients: curl, httpx, pyarrow.flight, gRPC."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import grpc
import httpx
import pyarrow.flight
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcSpans
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult

import frazil
from parts.certificates import Certificates, certificates
from parts.processes import pause

TOPIC = "/shop/orders"
DEADLINE_S = 30
DOORS = ("http", "flight", "danube", "admin", "otlp_grpc", "otlp_http")
TELEMETRY = {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}}


class Secured(NamedTuple):
    process: subprocess.Popen[bytes]
    addresses: dict[str, str]
    data: Path
    config: Path

    @property
    def token(self) -> str:
        """The local token: who can read the folder may do everything."""
        return (self.data / "~token").read_text()

    def port(self, door: str) -> int:
        found = urlsplit(self.addresses[door]).port
        assert found is not None
        return found

    def cli(self, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("FRAZIL_")}
        return subprocess.run(
            [sys.executable, "-m", "frazil", *words],
            env={**clean, **environment}, capture_output=True, text=True, timeout=DEADLINE_S,
        )  # fmt: skip


@contextlib.contextmanager
def secured(folder: Path, settings: dict[str, Any], *arguments: str) -> Iterator[Secured]:
    data, config = folder / "data", folder / "frazil.yaml"
    config.write_text(yaml.safe_dump(settings))
    command = [sys.executable, "-m", "frazil", "serve", "--json", "--no-pipeline", "--data", str(data)]
    command += ["--config", str(config), "--port", "0", "--flight-port", "0", "--broker-port", "0", "--admin-port", "0"]
    log = (folder / "log").open("wb")
    with log, subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=log) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line, (folder / "log").read_text()
            told = json.loads(line)
            yield Secured(process, {**told, "http": told["address"]}, data, config)
        finally:
            process.terminate()
            assert process.wait(DEADLINE_S) == 0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(made: Certificates, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    settings = {"security": {"enabled": True, "tls": made.tls()}, "telemetry": TELEMETRY}
    with secured(tmp_path_factory.mktemp("secured"), settings) as found:
        yield found


def verifying(made: Certificates, client: tuple[str, str] | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(made.ca))
    if client is not None:
        context.load_cert_chain(*client)
    return context


def shown_certificate(port: int) -> str:
    return ssl.get_server_certificate(("127.0.0.1", port))


def test_every_address_says_tls(server: Secured, made: Certificates) -> None:
    schemes = {door: urlsplit(server.addresses[door]).scheme for door in DOORS}
    assert schemes == dict.fromkeys(DOORS, "https") | {"flight": "grpc+tls"}
    headers = {"authorization": f"Bearer {server.token}"}
    told = httpx.get(f"{server.addresses['http']}/v1/server", verify=verifying(made), headers=headers).json()
    assert told["flight"] == server.addresses["flight"]
    assert told["danube"] == server.addresses["danube"]


def test_curl_verifies_the_server(server: Secured, made: Certificates) -> None:
    address = f"{server.addresses['http']}/health/live"
    done = subprocess.run(["curl", "-sS", "--cacert", str(made.ca), address], capture_output=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    stranger = subprocess.run(["curl", "-sS", address], capture_output=True, timeout=DEADLINE_S)
    assert stranger.returncode == 60, "it does not trust our CA"


def test_a_stock_flight_client_over_tls(server: Secured, made: Certificates) -> None:
    options = pyarrow.flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {server.token}".encode())])
    with pyarrow.flight.connect(server.addresses["flight"], tls_root_certs=made.ca.read_bytes()) as client:
        assert list(client.list_actions(options))
        with pytest.raises(pyarrow.flight.FlightUnauthenticatedError):
            list(client.list_actions())


def test_our_client_verifies_and_says_what_to_do(server: Secured, made: Certificates) -> None:
    address, token = server.addresses["flight"], server.token
    with frazil.connect(address, token=token, ca=made.ca) as storage:
        assert storage.topic(TOPIC).publish("tea") == 0
    with pytest.raises(frazil.OwnerUnreachable, match="name that authority as `ca`"):
        frazil.connect(address, token=token)
    with pytest.raises(frazil.Unauthenticated):
        frazil.connect(address, token="wrong", ca=made.ca)
    with pytest.raises(frazil.Unauthenticated):
        frazil.connect(address, ca=made.ca)


def test_a_token_is_never_sent_in_clear_text_to_another_host(made: Certificates) -> None:
    with pytest.raises(frazil.InvalidInput, match="clear text"):
        frazil.connect("grpc://frazil.example:6660", token="secret")


def test_the_command_line_uses_the_local_token_or_that_of_the_environment(server: Secured, made: Certificates) -> None:
    place = ("--data", str(server.data), "--config", str(server.config))
    assert server.cli("topics", "create", "/cli/local", *place).returncode == 0
    assert server.cli("produce", "/cli/local", "tea", *place).returncode == 0
    assert server.cli("consume", "/cli/local", *place).stdout == "tea\n"
    named = ("topics", "list", "--json", "--server", server.addresses["http"])
    unverified = server.cli(*named, FRAZIL_TOKEN=server.token)
    assert unverified.returncode == 7
    assert "set FRAZIL_CA or client.ca" in unverified.stderr
    assert "unauthenticated" in server.cli(*named, FRAZIL_CA=str(made.ca)).stderr
    right = server.cli(*named, FRAZIL_CA=str(made.ca), FRAZIL_TOKEN_FILE=str(server.data / "~token"))
    assert "/cli/local" in right.stdout, right.stderr


def test_danube_over_tls(server: Secured, made: Certificates) -> None:
    credentials = grpc.ssl_channel_credentials(made.ca.read_bytes())
    for door in ("danube", "admin"):
        with grpc.secure_channel(f"127.0.0.1:{server.port(door)}", credentials) as channel:
            answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=DEADLINE_S)
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_telemetry_over_tls(server: Secured, made: Certificates) -> None:
    done = server.cli("tenants", "create", "acme", "--data", str(server.data), "--config", str(server.config))
    assert done.returncode == 0, done.stderr
    span = TracerProvider().get_tracer("tests").start_span("work")
    span.end()
    headers = {"authorization": f"Bearer {server.token}", "x-frazil-tenant": "acme"}
    credentials = grpc.ssl_channel_credentials(made.ca.read_bytes())
    address = server.addresses["otlp_grpc"]
    exporter = GrpcSpans(endpoint=address, credentials=credentials, headers=headers, timeout=DEADLINE_S)
    assert exporter.export([span]) is SpanExportResult.SUCCESS
    exporter.shutdown()
    where, json_type = f"{server.addresses['otlp_http']}/v1/traces", {"content-type": "application/json"}
    told = httpx.post(where, verify=verifying(made), headers=headers | json_type, content=b"{}", timeout=DEADLINE_S)
    assert (told.status_code, told.json()) == (200, {})
    refused = httpx.post(where, verify=verifying(made), headers=json_type, content=b"{}", timeout=DEADLINE_S)
    assert (refused.status_code, refused.json()["code"]) == (401, 16)


@pytest.mark.parametrize("door", DOORS)
def test_tls_1_1_is_refused(server: Secured, door: str) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_ciphers("ALL:@SECLEVEL=0")

    def offered(version: ssl.TLSVersion) -> str | None:
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = version
        with (
            socket.create_connection(("127.0.0.1", server.port(door)), DEADLINE_S) as plain,
            context.wrap_socket(plain, server_hostname="localhost") as made,
        ):
            return made.version()

    with pytest.warns(DeprecationWarning, match="TLSv1"):
        assert offered(ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
    with pytest.warns(DeprecationWarning, match="TLSv1"), pytest.raises((ssl.SSLError, ConnectionError)):
        offered(ssl.TLSVersion.TLSv1_1)


def test_required_client_certificates(made: Certificates, tmp_path: Path) -> None:
    with secured(tmp_path, {"security": {"enabled": True, "tls": made.tls("required")}}) as server:
        http, flight, token = server.addresses["http"], server.addresses["flight"], server.token
        assert httpx.get(f"{http}/health/live", verify=verifying(made, made.client)).status_code == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{http}/health/live", verify=verifying(made))
        certificate, key = made.client
        with frazil.connect(flight, token=token, ca=made.ca, certificate=certificate, key=key) as storage:
            assert storage.topics() == []
        with pytest.raises(frazil.OwnerUnreachable):
            frazil.connect(flight, token=token, ca=made.ca, give_up_ms=0)
        stranger = certificates(tmp_path / "stranger").client
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{http}/health/live", verify=verifying(made, stranger))


def test_a_new_certificate_drops_no_connection(tmp_path: Path) -> None:
    used, other = certificates(tmp_path / "used"), certificates(tmp_path / "other")
    old = Certificates(tmp_path / "old")
    shutil.copytree(used.folder, old.folder)
    with secured(tmp_path, {"security": {"enabled": True, "tls": used.tls()}, "telemetry": TELEMETRY}) as server:
        http, flight = server.addresses["http"], server.addresses["flight"]
        ports = [server.port(door) for door in DOORS]
        with (
            httpx.Client(verify=verifying(old)) as kept,
            frazil.connect(flight, token=server.token, ca=old.ca) as storage,
        ):
            topic = storage.topic(TOPIC)
            rows = iter(topic.read("earliest", follow=True))
            assert topic.publish("before") == 0
            assert next(rows).payload == b"before"
            assert kept.get(f"{http}/health/live").status_code == 200
            shown = (other.folder / "server.pem").read_text().strip()
            used.replace_by(other)
            for port in ports:
                for _ in range(100):
                    if shown_certificate(port).strip() == shown:
                        break
                    pause(0.1)
                else:
                    raise AssertionError("the new certificate is not shown")
            assert topic.publish("after") == 1
            assert next(rows).payload == b"after"
            assert kept.get(f"{http}/health/live").status_code == 200
            rows.close()
        with pytest.raises(frazil.OwnerUnreachable):
            frazil.connect(flight, token=server.token, ca=old.ca, give_up_ms=0)
        with frazil.connect(flight, token=server.token, ca=other.ca) as storage:
            assert storage.topics() == [TOPIC]


def test_a_server_beyond_loopback_is_refused_or_says_that_it_is_insecure(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "frazil", "serve", "--data", str(tmp_path / "none"), "--host", "0.0.0.0"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: http.host: 0.0.0.0 is not a loopback address, and security is off")
    assert "--insecure" in refused.stderr
    assert not (tmp_path / "none").exists(), "nothing was opened"
    with secured(tmp_path, {}, "--host", "0.0.0.0", "--insecure") as server:
        answer = httpx.get(f"http://127.0.0.1:{server.port('http')}/health/ready").json()
        assert [one["error"] for one in answer["warnings"]] == ["insecure"]
    assert "insecure: http.host: 0.0.0.0" in (tmp_path / "log").read_text()

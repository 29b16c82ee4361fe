"""Client certificates on the HTTP door of a real `frazil serve`, and callers that claim to be others."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from frazil.node.access.local_token import read_local_token
from parts.certificates import Certificates, certificates
from parts.danube import Server
from parts.processes import pause

pytestmark = pytest.mark.timeout(180)

CLAIMS = {
    "frazil.certificate": "dev-client",
    "x-client-cert": "dev-client",
    "x-ssl-client-s-dn": "CN=dev-client",
    "x-forwarded-for": "203.0.113.9",
    "x-forwarded-proto": "http",
    "forwarded": "for=203.0.113.9",
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return certificates(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """The same names, of another CA."""
    return certificates(tmp_path_factory.mktemp("stranger"))


@pytest.fixture(scope="module", params=["optional", "required"])
def server(
    request: pytest.FixtureRequest, made: Certificates, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Server, bool]]:
    http = {"port": 0, "tls": made.tls(request.param)}
    others = {"security": {"enabled": True, "tls": made.tls()}, "http": http}
    found = Server(tmp_path_factory.mktemp("served"), others=others)
    found.start()
    try:
        with calling(found, made, made.client) as admin:
            bearer = {"authorization": f"Bearer {read_local_token(found.folder / 'data')}"}
            assert admin.post("/v1/topics", json={"topic": "/shop/tea"}, headers=bearer).status_code == 201
            binding = {"principal": "cert:dev-client", "role": "reader", "scope": "/shop/*"}
            assert admin.post("/v1/bindings", json=binding, headers=bearer).status_code == 201
        yield found, request.param == "required"
        assert "Traceback" not in found.log()
    finally:
        found.kill()


def calling(server: Server, made: Certificates, client: tuple[str, str] | None, **headers: str) -> httpx.Client:
    context = ssl.create_default_context(cafile=str(made.ca))
    if client is not None:
        context.load_cert_chain(*client)
    return httpx.Client(base_url=server.http, verify=context, timeout=30, headers=headers)


def test_a_certificate_names_its_caller(server: tuple[Server, bool], made: Certificates) -> None:
    with calling(server[0], made, made.client) as client:
        assert client.get("/v1/whoami").json()["principal"] == "cert:dev-client"
        assert [one["topic"] for one in client.get("/v1/topics").json()["items"]] == ["/shop/tea"]
        assert client.get("/v1/topics/bank/money").status_code == 403
        assert client.delete("/v1/topics/shop/tea").status_code == 403
        assert client.get("/v1/topics", headers={"authorization": "Bearer wrong"}).status_code == 401
        both = [("authorization", "Bearer a"), ("authorization", "Bearer b")]
        assert client.get("/v1/topics", headers=both).status_code == 401


def test_a_caller_without_a_certificate_is_nobody(server: tuple[Server, bool], made: Certificates) -> None:
    with calling(server[0], made, None, **CLAIMS) as client:
        if server[1]:
            with pytest.raises(httpx.TransportError):
                client.get("/health/live")
        else:
            assert client.get("/v1/whoami").status_code == 401
            assert client.get("/health/live").status_code == 200


def test_a_certificate_of_another_authority_ends_the_handshake(
    server: tuple[Server, bool], made: Certificates, stranger: Certificates
) -> None:
    with calling(server[0], made, stranger.client) as client, pytest.raises(httpx.TransportError):
        client.get("/health/live")


def test_headers_do_not_change_the_address_in_the_audit_log(server: tuple[Server, bool], made: Certificates) -> None:
    with calling(server[0], made, made.client, **CLAIMS) as client:
        assert client.delete("/v1/topics/shop/claimed").status_code == 403
        assert "strict-transport-security" in client.get("/health/live").headers
    log = server[0].folder / "data" / "audit.log"
    while not (lines := _audit(log, "/shop/claimed")):  # a thread writes it; the test has a time limit
        pause(0.05)
    assert all("127.0.0.1" in json.dumps(one) and "203.0.113.9" not in json.dumps(one) for one in lines)


def _audit(path: Path, resource: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}") and resource in line]

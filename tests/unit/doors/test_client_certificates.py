"""The name in a client certificate is the same on every door, and is never a part of another name."""

from __future__ import annotations

import asyncio
import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from frazil.core.clock import SystemClock
from frazil.doors.client_certificates import certificate_of_call, certificate_of_scope, peer_certificate
from frazil.node.access.gate import Credentials
from frazil.node.access.guard import _certificate_holder

Dns, Email, Uri, Address = x509.DNSName, x509.RFC822Name, x509.UniformResourceIdentifier, x509.IPAddress
LOCALHOST = Address(ipaddress.ip_address("127.0.0.1"))
NAMED: list[tuple[list[str], list[x509.GeneralName], str | None]] = [
    (["cn"], [Email("a@b.example"), Dns("d.example"), Uri("spiffe://x"), Uri("spiffe://y")], "spiffe://x"),
    (["cn"], [Email("a@b.example"), Dns("d.example")], "d.example"),
    (["cn"], [Email("a@b.example")], "a@b.example"),
    (["cn"], [LOCALHOST], "cn"),
    (["first", "second"], [], "first"),
    (["cn"], [], "cn"),
    ([], [], None),
    (["admin\0.example"], [], "admin\0.example"),
    (["cn"], [Dns("admin\0.example")], "admin\0.example"),
    (["cn"], [Email("admin\0@b.example")], "admin\0@b.example"),
    (["cn"], [Uri("spiffe://admin\0x")], "spiffe://admin\0x"),
]
PEM = serialization.Encoding.PEM


class Authority:
    """A CA that signs whatever it is asked for."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        self.now = dt.datetime.fromtimestamp(SystemClock().now_us() // 1_000_000, dt.UTC)
        self.ca = self._signed(self._name, self._key, [], is_ca=True)

    def issue(self, common_names: Sequence[str], names: Sequence[x509.GeneralName]) -> tuple[bytes, bytes]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, one) for one in common_names])
        form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        return self._signed(subject, key, names), key.private_bytes(PEM, *form)

    def _signed(self, subject: x509.Name, key: Any, names: Sequence[x509.GeneralName], *, is_ca: bool = False) -> bytes:
        day = dt.timedelta(days=1)
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(self._name).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number()).not_valid_before(self.now - day)
        made = made.not_valid_after(self.now + day)
        made = made.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        if names:
            made = made.add_extension(x509.SubjectAlternativeName(names), critical=False)
        return made.sign(self._key, hashes.SHA256()).public_bytes(PEM)


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


async def by_grpc(authority: Authority, client: tuple[bytes, bytes]) -> Any:
    """What a gRPC server reads from a client's certificate."""
    found = []

    async def handler(_: bytes, context: Any) -> bytes:
        found.append(certificate_of_call(context.auth_context()))
        return b""

    certificate, key = authority.issue(["localhost"], [Dns("localhost")])
    server = grpc.aio.server()
    methods = {"y": grpc.unary_unary_rpc_method_handler(handler)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("x", methods),))
    credentials = grpc.ssl_server_credentials([(key, certificate)], authority.ca, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    own = grpc.ssl_channel_credentials(authority.ca, client[1], client[0])
    async with grpc.aio.secure_channel(f"localhost:{port}", own) as channel:
        call: Any = channel.unary_unary("/x/y")
        await call(b"", timeout=20)
    await server.stop(None)
    return found[0]


def by_http(folder: Path, authority: Authority, client: tuple[bytes, bytes]) -> Any:
    """What a TLS server reads from a client's certificate, by a handshake in memory."""

    def context(kind: Any, pair: tuple[bytes, bytes]) -> ssl.SSLContext:
        made = ssl.SSLContext(kind)
        made.load_verify_locations(cadata=authority.ca.decode())
        made.verify_mode = ssl.CERT_REQUIRED
        (folder / "pair.pem").write_bytes(pair[0] + pair[1])
        made.load_cert_chain(folder / "pair.pem")
        return made

    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    pair = authority.issue(["localhost"], [Dns("localhost")])
    server = context(ssl.PROTOCOL_TLS_SERVER, pair).wrap_bio(there, back, server_side=True)
    asking = context(ssl.PROTOCOL_TLS_CLIENT, client).wrap_bio(back, there, server_hostname="localhost")
    for one in (asking, server, asking, server):
        try:
            one.do_handshake()
        except ssl.SSLWantReadError:
            continue
    return peer_certificate(server)


@pytest.mark.parametrize(("common_names", "names", "expected"), NAMED)
def test_a_certificate_has_one_name_on_every_door(
    tmp_path: Path, authority: Authority, common_names: list[str], names: list[x509.GeneralName], expected: str | None
) -> None:
    client = authority.issue(common_names, names)
    end_us = int((authority.now + dt.timedelta(days=1)).timestamp()) * 1_000_000
    wanted = None if expected is None else (expected, end_us)
    assert asyncio.run(by_grpc(authority, client)) == wanted
    assert by_http(tmp_path, authority, client) == wanted


def test_a_name_with_a_zero_byte_is_nobody() -> None:
    assert _certificate_holder(Credentials(certificate="admin\0.example")) is None
    assert _certificate_holder(Credentials(certificate="admin")) is not None


def test_what_is_no_certificate_names_nobody(caplog: pytest.LogCaptureFixture) -> None:
    assert certificate_of_call({"x509_pem_cert": [b"broken"], "x509_common_name": [b"admin"]}) is None
    assert "is refused" in caplog.text
    assert certificate_of_call({"x509_common_name": [b"admin"]}) is None
    assert certificate_of_call({}) is None
    assert certificate_of_scope({"type": "http"}) is None

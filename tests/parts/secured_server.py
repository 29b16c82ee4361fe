"""A real `frazil serve` with security and TLS on, with its certificates, keys, issuers and stock Danube clients."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc
import httpx
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
from danube.client import DanubeClient, DanubeClientBuilder

from frazil.core.clock import SystemClock
from parts.danube import Server
from parts.issuers import AUDIENCE, SECRET, ec_key, jwks, public_jwk, rsa_key

SHARED_ISSUER, KEYS_ISSUER = "https://shared.example", "https://keys.example"
_DAYS = dt.timedelta(days=2)


def now_s() -> int:
    return SystemClock().now_us() // 1_000_000


class TlsFiles:
    """A CA, and certificates of a server on loopback and of a client `robot`, as files."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._ca_key = ec_key()
        self._ca_name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test CA")])
        self.ca = self._write("ca.pem", self._certificate(self._ca_name, self._ca_key.public_key(), is_ca=True))
        self.certificate, self.key = self._issue("server", ["localhost"])
        self.client_certificate, self.client_key = self._issue("robot", [])

    def _issue(self, name: str, names: list[str]) -> tuple[Path, Path]:
        key = ec_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        form = serialization.PrivateFormat.PKCS8
        pem = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
        issued = self._certificate(subject, key.public_key(), names)
        return self._write(f"{name}.pem", issued), self._write(f"{name}.key", pem)

    def _certificate(
        self, subject: x509.Name, key: Any, names: list[str] | None = None, *, is_ca: bool = False
    ) -> bytes:
        now = dt.datetime.fromtimestamp(now_s(), dt.UTC)
        builder = x509.CertificateBuilder().subject_name(subject).issuer_name(self._ca_name).public_key(key)
        builder = builder.serial_number(x509.random_serial_number())
        builder = builder.not_valid_before(now - _DAYS).not_valid_after(now + _DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
        if names:
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            shown = x509.SubjectAlternativeName([*(x509.DNSName(name) for name in names), address])
            builder = builder.add_extension(shown, critical=False)
        made = builder.sign(self._ca_key, hashes.SHA256())
        return made.public_bytes(serialization.Encoding.PEM)

    def _write(self, name: str, data: bytes) -> Path:
        path = self._folder / name
        path.write_bytes(data)
        path.chmod(0o600)
        return path


class SecuredServer(Server):
    """Has one issuer with a shared secret, and one with the public keys `rsa` and `ec`."""

    def __init__(
        self,
        folder: Path,
        *,
        mtls: bool = False,
        others: dict[str, Any] | None = None,
        issuers: Sequence[dict[str, Any]] = (),
        **given: Any,
    ) -> None:
        """`issuers` are further ones."""
        self.files = TlsFiles(folder / "tls")
        self.rsa, self.ec = rsa_key(), ec_key()
        self.secret = SECRET
        secret_file, jwks_file = folder / "shared-secret", folder / "jwks.json"
        secret_file.write_text(self.secret)
        jwks_file.write_bytes(jwks(public_jwk(self.rsa, "rsa"), public_jwk(self.ec, "ec")))
        public = {"issuer": KEYS_ISSUER, "algorithms": ["RS256", "ES256"], "jwks_file": str(jwks_file)}
        shared = {"issuer": SHARED_ISSUER, "algorithms": ["HS256"], "secret_file": str(secret_file)}
        tls = {"certificate": str(self.files.certificate), "key": str(self.files.key)}
        if mtls:
            tls |= {"client_ca": str(self.files.ca), "client_certificates": "required"}
        trusted = [one | {"audience": AUDIENCE} for one in (public, shared, *issuers)]
        security = {"enabled": True, "tls": tls, "jwt": trusted}
        super().__init__(folder, others={"security": security, **(others or {})}, **given)
        self._mtls = mtls
        self.url = self.url.replace("http://", "https://")

    @property
    def local_token(self) -> str:
        return (self.folder / "data" / "~token").read_text()

    def call(self, method: str, path: str, token: str | None = None, **others: Any) -> httpx.Response:
        """Call the HTTP door; by default with the local token."""
        files = self.files
        context = ssl.create_default_context(cafile=str(files.ca))
        if self._mtls:
            context.load_cert_chain(files.client_certificate, files.client_key)
        headers = {"authorization": f"Bearer {self.local_token if token is None else token}"}
        with httpx.Client(verify=context, timeout=30) as client:
            return client.request(method, self.http + path, headers=headers, **others)

    def key(self, *roles: str) -> str:
        """Make an API key with these roles."""
        made = self.call("POST", "/v1/keys", json={"owner": "tests"})
        assert made.status_code == 201, made.text
        self.bind(made.json()["principal"], *roles)
        key: str = made.json()["key"]
        return key

    def bind(self, principal: str, *roles: str) -> None:
        for role in roles:
            bound = self.call("POST", "/v1/bindings", json={"principal": principal, "role": role})
            assert bound.status_code in (200, 201), bound.text

    def channel_credentials(self) -> grpc.ChannelCredentials:
        files = self.files
        if not self._mtls:
            return grpc.ssl_channel_credentials(files.ca.read_bytes())
        return grpc.ssl_channel_credentials(
            files.ca.read_bytes(), files.client_key.read_bytes(), files.client_certificate.read_bytes()
        )

    async def client(self, token: str | None) -> DanubeClient:
        """The stock client, built as its users build it."""
        files, builder = self.files, DanubeClientBuilder().service_url(self.url)
        if self._mtls:
            builder = builder.with_mtls(str(files.ca), str(files.client_certificate), str(files.client_key))
        else:
            builder = builder.with_tls(str(files.ca))
        return await (builder if token is None else builder.with_token(token)).build()

"""Certificates for a trial: a CA, a server's certificate and a client's, each with its key in a file of mode 0600."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from frazil.core.clock import Clock, SystemClock
from frazil.core.errors import InvalidInput

FILES = ("ca.pem", "ca-key.pem", "server.pem", "server-key.pem", "client.pem", "client-key.pem")
CLIENT_NAME = "dev-client"
DAYS = 365
_BACK = dt.timedelta(hours=1)
"""Valid since an hour ago, for hosts whose clocks are behind."""
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9*]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")

_Key = ec.EllipticCurvePrivateKey


def make_certificates(folder: Path, hosts: Sequence[str] = (), clock: Clock | None = None) -> list[str]:
    """Write `FILES` to the folder, replacing them, and return the names and addresses of the server."""
    names = list(dict.fromkeys(["localhost", "127.0.0.1", "::1", *_own_name(), *hosts]))
    server_names = x509.SubjectAlternativeName([_general_name(name) for name in names])
    now = dt.datetime.fromtimestamp((clock or SystemClock()).now_us() / 1_000_000, dt.timezone.utc)
    folder.mkdir(parents=True, exist_ok=True)
    ca_key, ca_name = ec.generate_private_key(ec.SECP256R1()), _name("Frazil development CA")
    authority = _builder(ca_name, ca_name, ca_key, now).add_extension(x509.BasicConstraints(True, 0), critical=True)
    authority = authority.add_extension(_usage(signs_certificates=True), critical=True)
    identifier = x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key())
    ca = authority.add_extension(identifier, critical=False).sign(ca_key, hashes.SHA256())
    _write(folder, "ca", ca, ca_key)
    client_names = x509.SubjectAlternativeName([x509.DNSName(CLIENT_NAME)])
    for file, subject, alternatives, purpose in (
        ("server", names[0], server_names, ExtendedKeyUsageOID.SERVER_AUTH),
        ("client", CLIENT_NAME, client_names, ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        key = ec.generate_private_key(ec.SECP256R1())
        issued = _builder(_name(subject), ca_name, key, now).add_extension(alternatives, critical=False)
        issued = issued.add_extension(x509.BasicConstraints(False, None), critical=True)
        issued = issued.add_extension(_usage(signs_certificates=False), critical=True)
        issued = issued.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        _write(folder, file, issued.add_extension(by, critical=False).sign(ca_key, hashes.SHA256()), key)
    return names


def _own_name() -> list[str]:
    name = socket.gethostname()
    return [name] if _HOST.fullmatch(name) else []


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name.strip("[]")))
    except ValueError:
        pass
    if not _HOST.fullmatch(name):
        raise InvalidInput(f"--host: {name!a:.200} is neither a host name nor an address", field="host")
    return x509.DNSName(name)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _builder(subject: x509.Name, issuer: x509.Name, key: _Key, now: dt.datetime) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACK)
        .not_valid_after(now + dt.timedelta(days=DAYS))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(folder: Path, name: str, certificate: x509.Certificate, key: _Key) -> None:
    """Write the key first, with its mode from the start."""
    pem = serialization.Encoding.PEM
    secret = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    _replace(folder / f"{name}-key.pem", secret, 0o600)
    _replace(folder / f"{name}.pem", certificate.public_bytes(pem), 0o644)


def _replace(path: Path, content: bytes, mode: int) -> None:
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb") as file:
        file.write(content)
    draft.replace(path)

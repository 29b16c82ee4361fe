"""The certificate of a door: its files, read again when they change, for gRPC and for HTTP.

A handshake takes the newest valid files, which are checked at most once a second. Open connections are not touched. A
new file that is missing, half written or does not fit the key is not used: the old one stays, with a warning.

gRPC's Python API either requires client certificates or does not ask for them. So `client_certificates: optional` is
for the HTTP door alone, and refused for the others.
"""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from frazil.core.clock import Clock, SystemClock
from frazil.core.credentials import pem_file
from frazil.core.errors import InvalidSettings
from frazil.core.settings.exposure import check_bind
from frazil.core.settings.security import ClientCertificates, TlsSettings

if TYPE_CHECKING:
    from frazil.core.settings import FlightSettings, HttpSettings, Settings
    from frazil.core.settings.broker import BrokerSettings
    from frazil.core.settings.otlp import OtlpSettings

    DoorSettings = HttpSettings | FlightSettings | BrokerSettings | OtlpSettings

CHECK_INTERVAL_US = 1_000_000

_VERIFY = {
    ClientCertificates.NONE: ssl.CERT_NONE,
    ClientCertificates.OPTIONAL: ssl.CERT_OPTIONAL,
    ClientCertificates.REQUIRED: ssl.CERT_REQUIRED,
}
_log = logging.getLogger("frazil.serve")


def tls_of(settings: Settings, door: DoorSettings) -> TlsSettings:
    """Return the certificate of a door: its own, else that of all doors."""
    return settings.security.tls if door.tls is None else door.tls


def protect(
    settings: Settings,
    door: DoorSettings,
    host: str,
    setting: str,
    clock: Clock | None = None,
) -> DoorTls | None:
    """Load the certificate of a door that is to listen on a host; None if it has none.

    `setting` names the host's setting, such as `flight.host`. Raises `InvalidSettings` if the host is not loopback, and
    the door not protected.
    """
    check_bind(settings.security, door.tls, host, setting)
    found, section = tls_of(settings, door), setting.rpartition(".")[0]
    if not found.is_on:
        return None
    return DoorTls(found, "security.tls" if door.tls is None else f"{section}.tls", clock or SystemClock())


def served_certificates(settings: Settings) -> dict[str, dict[str, str]]:
    """Return the file and a name of the HTTP and Flight doors' certificates, for `~serve`.

    Who can read the data folder connects to loopback, whatever names the certificate has, and trusts just this one.
    """
    found = {}
    for section, door in (("http", settings.http), ("flight", settings.flight)):
        tls = tls_of(settings, door)
        certificate = pem_file(tls.certificate, f"{section}.tls.certificate")
        if tls.certificate is not None and certificate is not None:
            name = _first_name(certificate)
            if name is not None:
                found[f"{section}_certificate"] = {"file": str(tls.certificate.absolute()), "name": name}
    return found


def _first_name(certificate: bytes) -> str | None:
    """Return a name of the server in its own certificate: a DNS name, else an address."""
    from cryptography import x509

    try:
        leaf = x509.load_pem_x509_certificates(certificate)[0]
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (ValueError, x509.ExtensionNotFound):
        return None
    dns = [one.replace("*", "any", 1) for one in names.get_values_for_type(x509.DNSName)]
    return next(iter([*dns, *map(str, names.get_values_for_type(x509.IPAddress))]), None)


@dataclass(frozen=True, slots=True, repr=False)
class LoadedFiles:
    certificate: bytes
    key: bytes
    client_ca: bytes | None
    context: ssl.SSLContext


class DoorTls:
    """Loads the files when made; raises `InvalidSettings` that names the setting and the file. Thread-safe."""

    def __init__(self, settings: TlsSettings, setting: str, clock: Clock) -> None:
        """`setting` is the name of the section, for messages."""
        assert settings.certificate is not None
        assert settings.key is not None
        self._settings = settings
        self._setting = setting
        self._clock = clock
        self._guard = threading.Lock()
        self._paths = [path for path in (settings.certificate, settings.key, settings.client_ca) if path is not None]
        self._seen = _signatures(self._paths)
        self._loaded = _load(settings, setting)
        self._checked_us = clock.monotonic_us()
        self._warned_of: object = None

    def current(self) -> LoadedFiles:
        """Return the newest valid files."""
        with self._guard:
            now_us = self._clock.monotonic_us()
            if now_us - self._checked_us >= CHECK_INTERVAL_US:
                self._checked_us = now_us
                self._look()
            return self._loaded

    @property
    def certificate_file(self) -> Path:
        assert self._settings.certificate is not None
        return self._settings.certificate.absolute()

    def context(self) -> ssl.SSLContext:
        """Return the context for one handshake of the HTTP door."""
        return self.current().context

    def grpc_credentials(self) -> Any:
        """Return server credentials of gRPC, which ask for the newest files at each handshake."""
        import grpc

        if self._settings.client_certificates is ClientCertificates.OPTIONAL:
            raise InvalidSettings(
                f"{self._setting}.client_certificates: `optional` is for the HTTP door alone: gRPC requires client "
                "certificates or ignores them; set `required` or `none` in flight.tls, broker.tls and "
                "telemetry.otlp.tls, or in security.tls, with http.tls for the HTTP door",
                field=f"{self._setting}.client_certificates",
            )
        used = self.current()

        def fetch() -> Any:
            nonlocal used
            newest = self.current()
            if newest is used:
                return None
            used = newest
            return self._grpc_configuration(newest)

        return grpc.dynamic_ssl_server_credentials(
            self._grpc_configuration(used),
            fetch,
            require_client_authentication=self._settings.client_certificates is ClientCertificates.REQUIRED,
        )

    def _grpc_configuration(self, files: LoadedFiles) -> Any:
        import grpc

        asks = self._settings.client_certificates is ClientCertificates.REQUIRED
        ca = files.client_ca if asks else None
        return grpc.ssl_server_certificate_configuration([(files.key, files.certificate)], root_certificates=ca)

    def _look(self) -> None:
        """Load changed files. Files that cannot be used are tried again at each look, with one warning."""
        seen = _signatures(self._paths)
        if seen == self._seen:
            return
        try:
            self._loaded = _load(self._settings, self._setting)
        except InvalidSettings as error:
            if self._warned_of != seen:
                self._warned_of = seen
                _log.warning("the certificate was not replaced, the old one stays in use: %s", error.message)
            return
        self._seen, self._warned_of = seen, None
        _log.info("%s: the certificate was replaced by the new one in %s", self._setting, self._settings.certificate)


def _signatures(paths: Sequence[Path]) -> list[tuple[int, int, int] | None]:
    return [_signature(path) for path in paths]


def _signature(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _load(settings: TlsSettings, setting: str) -> LoadedFiles:
    certificate = pem_file(settings.certificate, f"{setting}.certificate")
    key = pem_file(settings.key, f"{setting}.key")
    client_ca = pem_file(settings.client_ca, f"{setting}.client_ca")
    assert certificate is not None
    assert key is not None
    _check_pair(settings, setting, certificate, key)
    return LoadedFiles(certificate, key, client_ca, _context(settings, setting, client_ca))


def _check_pair(settings: TlsSettings, setting: str, certificate: bytes, key: bytes) -> None:
    """Check the bytes that gRPC gets: it would accept them, and fail in each handshake."""
    from cryptography import x509
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

    form = Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    try:
        public = x509.load_pem_x509_certificates(certificate)[0].public_key().public_bytes(*form)
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        raise _unusable(f"{setting}.certificate", settings.certificate, "is not a PEM certificate") from None
    try:
        own = load_pem_private_key(key, None).public_key().public_bytes(*form)
    except TypeError:
        raise _unusable(f"{setting}.key", settings.key, "is encrypted; give a key without a password") from None
    except Exception:  # noqa: BLE001 - whatever is wrong with it
        raise _unusable(f"{setting}.key", settings.key, "is not a PEM private key") from None
    if own != public:
        raise _unusable(f"{setting}.key", settings.key, f"is not the key of the certificate {settings.certificate}")


def _context(settings: TlsSettings, setting: str, client_ca: bytes | None) -> ssl.SSLContext:
    assert settings.certificate is not None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    try:
        context.load_cert_chain(settings.certificate, settings.key, password="")
    except (OSError, ssl.SSLError) as error:
        why = f"cannot be used with the key {settings.key}: {error.strerror or error}"
        raise _unusable(f"{setting}.certificate", settings.certificate, why) from None
    context.verify_mode = _VERIFY[settings.client_certificates]
    if client_ca is not None and context.verify_mode is not ssl.CERT_NONE:
        try:
            context.load_verify_locations(cadata=client_ca.decode("ascii", "ignore"))  # comments have any bytes
        except (ssl.SSLError, ValueError, TypeError):
            raise _unusable(f"{setting}.client_ca", settings.client_ca, "has no PEM certificates") from None
    return context


def _unusable(setting: str, path: Path | None, why: str) -> InvalidSettings:
    return InvalidSettings(f"{setting}: {path} {why}", field=setting)

"""The caller's name in a verified client certificate, by one reading for gRPC and for HTTP.

gRPC's own properties are not used: they end a name at its first zero byte, so that `admin\\0.example` would be `admin`,
and their keys differ between versions. OpenSSL and gRPC verify the certificate; this module only reads it.
"""

from __future__ import annotations

import logging
import ssl
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from cryptography import x509

SCOPE_EXTENSION = "frazil.certificate"
PARSED_MAX = 256
"""Client certificates that are remembered: gRPC returns the whole certificate with each call."""

_log = logging.getLogger("frazil.serve")


class ClientCertificate(NamedTuple):
    """A verified client certificate. A connection outlives it, so that its end is checked again at each call.

    The name is its first URI, DNS name or e-mail address, else its common name.
    """

    name: str
    expires_us: int


def certificate_of_call(auth_context: Mapping[str, Sequence[bytes]]) -> ClientCertificate | None:
    """Return the client certificate of a gRPC call; None without one."""
    for certificate in auth_context.get("x509_pem_cert", ()):
        return _read(certificate)
    return None


def peer_certificate(ssl_object: ssl.SSLObject | ssl.SSLSocket | None) -> ClientCertificate | None:
    """Return that of a TLS connection; None without one, or if it was not verified."""
    if ssl_object is None or not ssl_object.getpeercert():
        return None
    certificate = ssl_object.getpeercert(binary_form=True)
    return None if certificate is None else _read(certificate)


def certificate_of_scope(scope: Mapping[str, Any]) -> ClientCertificate | None:
    """Return that of an HTTP request."""
    found: ClientCertificate | None = (scope.get("extensions") or {}).get(SCOPE_EXTENSION)
    return found


@lru_cache(PARSED_MAX)
def _read(certificate: bytes) -> ClientCertificate | None:
    """Read a certificate in PEM or DER. Returns None for one that cannot be read or has no name."""
    from cryptography import x509

    try:
        if certificate.startswith(b"-----BEGIN"):
            found = x509.load_pem_x509_certificate(certificate)
        else:
            found = x509.load_der_x509_certificate(certificate)
        name = _name(found)
        expires_us = int(found.not_valid_after_utc.timestamp()) * 1_000_000
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        _log.warning("a client certificate cannot be read, and is refused: %s", type(error).__name__)
        return None
    return None if name is None else ClientCertificate(name, expires_us)


def _name(certificate: x509.Certificate) -> str | None:
    from cryptography import x509
    from cryptography.x509.oid import NameOID

    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = None
    if names is not None:
        for kind in (x509.UniformResourceIdentifier, x509.DNSName, x509.RFC822Name):
            for name in names.get_values_for_type(kind):
                if name:
                    return str(name)
    for attribute in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME):
        if attribute.value and isinstance(attribute.value, str):
            return attribute.value
    return None

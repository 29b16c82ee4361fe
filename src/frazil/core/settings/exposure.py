"""Doors that other hosts can reach without TLS or without credentials: refused, unless the settings say `insecure`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from frazil.core.addresses import is_loopback
from frazil.core.errors import InvalidSettings

if TYPE_CHECKING:
    from frazil.core.settings import Settings
    from frazil.core.settings.security import SecuritySettings, TlsSettings


def check_bind(security: SecuritySettings, tls: TlsSettings | None, host: str, setting: str) -> None:
    """Raise `InvalidSettings` for a door that listens beyond loopback without protection. `tls` is the door's own."""
    reason = _exposed(security, tls, host)
    if reason is None or security.insecure:
        return
    todo = "enable security (security.enabled, security.tls)" if not security.enabled else "set security.tls"
    raise InvalidSettings(
        f"{setting}: {host} is not a loopback address, and {reason}; {todo}, listen on 127.0.0.1, or allow it in a "
        "trusted network with --insecure or security.insecure: true",
        field=setting,
    )


def check_binds(settings: Settings) -> None:
    """Check all doors of a server before it opens the first."""
    for setting, host, tls in _doors(settings):
        check_bind(settings.security, tls, host, setting)


def exposed_doors(settings: Settings) -> list[str]:
    """Describe each unprotected door of a server that other hosts reach, for its log and its readiness."""
    found = []
    for setting, host, tls in _doors(settings):
        reason = _exposed(settings.security, tls, host)
        if reason is not None:
            found.append(f"{setting}: {host}: {reason}")
    return found


def _exposed(security: SecuritySettings, tls: TlsSettings | None, host: str) -> str | None:
    if is_loopback(host):
        return None
    if not security.enabled:
        return "security is off: anybody who reaches it may do everything"
    if not (security.tls if tls is None else tls).is_on:
        return "it has no TLS: credentials and rows would cross the network in clear text"
    return None


def _doors(settings: Settings) -> Iterator[tuple[str, str, TlsSettings | None]]:
    yield "http.host", settings.http.host, settings.http.tls
    yield "flight.host", settings.flight.host, settings.flight.tls
    if settings.broker.enabled:
        yield "broker.host", settings.broker.host, settings.broker.tls
        yield "broker.admin_host", settings.broker.admin_host, settings.broker.tls
    if settings.telemetry.enabled:
        otlp = settings.telemetry.otlp
        yield "telemetry.otlp.grpc_host", otlp.grpc_host, otlp.tls
        yield "telemetry.otlp.http_host", otlp.http_host, otlp.tls

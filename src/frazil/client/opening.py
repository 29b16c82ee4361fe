"""Open Flight clients: the one place that connects. Every client verifies the server's certificate."""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight

from frazil.core.addresses import is_loopback
from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials, TokenReader
from frazil.core.errors import InvalidInput
from frazil.core.process.own_process import check_grpc

_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # timeout of an attempt: the owner may have many at once
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.ping_timeout_ms", 5_000),  # the time that counts: unset, a host that hangs is noticed after a minute
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

_users_of_grpc: weakref.WeakSet[object] = weakref.WeakSet()


def keep_after_fork(user: object) -> None:
    """Never drop calls or clients in a forked child. It shares the parent's sockets, and gRPC would notify the server
    and so end the parent's calls.
    """
    _users_of_grpc.add(user)


def _forked() -> None:
    for user in _users_of_grpc:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(user))


os.register_at_fork(after_in_child=_forked)


def is_tls(address: str) -> bool:
    return address.startswith(("grpc+tls://", "grpcs://"))


def open_client(address: str, credentials: ClientCredentials = NO_CREDENTIALS) -> FlightCalls:
    """A Flight client of the broker at an address. It opens no socket yet, and sends the token with every call."""
    check_grpc()
    options: dict[str, Any] = {"generic_options": list(_OPTIONS)}
    tokens = None
    if credentials.has_token:
        if not is_tls(address) and not is_loopback(_host(address)):
            raise InvalidInput(
                f"a token is not sent to {address:.200} in clear text; use grpc+tls://host:port", field="address"
            )
        tokens = TokenReader(credentials)
    if is_tls(address):
        options |= {
            "tls_root_certs": credentials.ca,
            "cert_chain": credentials.certificate,
            "private_key": credentials.key,
            "override_hostname": credentials.pinned_name,
        }
        options = {name: value for name, value in options.items() if value is not None}
    try:
        return FlightCalls(pa.flight.connect(address, **options), tokens)
    except (pa.ArrowException, ValueError) as error:
        hint = "grpc://host:port, or grpc+tls://host:port for TLS"
        raise InvalidInput(f"{address!r:.200} is no address ({error}); use {hint}") from None


def _host(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


class FlightCalls:
    """A Flight client that sends the current token with every call.

    The token is an option of the call. Arrow calls a middleware from C++, and a Ctrl-C that arrives there is lost.
    """

    def __init__(self, client: pa.flight.FlightClient, tokens: TokenReader | None) -> None:
        self._client = client
        self._tokens = tokens

    def do_get(self, ticket: pa.flight.Ticket, **options: Any) -> Any:
        return self._client.do_get(ticket, self._with_token(options))

    def do_action(self, action: pa.flight.Action, **options: Any) -> Any:
        return self._client.do_action(action, self._with_token(options))

    def do_put(self, descriptor: pa.flight.FlightDescriptor, schema: pa.Schema) -> Any:
        return self._client.do_put(descriptor, schema, self._with_token({}))

    def do_exchange(self, descriptor: pa.flight.FlightDescriptor) -> Any:
        return self._client.do_exchange(descriptor, self._with_token({}))

    def close(self) -> None:
        self._client.close()

    def _with_token(self, options: dict[str, Any]) -> pa.flight.FlightCallOptions:
        token = None if self._tokens is None else self._tokens.read()
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        return pa.flight.FlightCallOptions(headers=headers, **options)

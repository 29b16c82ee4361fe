"""One connection to the owner of the topics: request/response calls, with the owner's errors."""

from __future__ import annotations

import ctypes
import json
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar
from urllib.parse import urlsplit

import pyarrow as pa
import pyarrow.flight

from frazil.core.addresses import is_loopback
from frazil.core.backoff import backoff, jittered
from frazil.core.clock import Clock
from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials, TokenReader
from frazil.core.errors import Closed, FrazilError, InvalidInput, OwnerUnreachable, PermissionDenied, Unauthenticated
from frazil.core.errors.codec import from_dict
from frazil.core.process.own_process import FORKED_FROM_GRPC, OwnProcess, check_grpc

CALL_SECONDS_MAX = 60.0
DELAY_SECONDS_MIN, DELAY_SECONDS_MAX = 0.1, 2.0
FAILURES = (pa.flight.FlightError, pa.ArrowException, OSError)
"""What PyArrow raises when a call fails, whatever the reason."""

_OPTIONS = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 5_000),  # timeout of an attempt: the owner may have many at once
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.use_local_subchannel_pool", 1),
)

_REFUSALS: tuple[tuple[type[BaseException], type[FrazilError]], ...] = (
    (pa.flight.FlightUnauthenticatedError, Unauthenticated),
    (pa.flight.FlightUnauthorizedError, PermissionDenied),
)
"""Refusals without details, as of a proxy."""

_TLS_HINTS = (
    ("certificate verify failed", "its certificate is not signed by a trusted authority; name that authority as `ca`"),
    ("hostname verification", "its certificate is not for this host name; use a name that the certificate has"),
    ("not in peer certificate", "its certificate is not for this host name; use a name that the certificate has"),
    ("wrong version number", "it has no TLS; use grpc://host:port"),
    ("certificate required", "it requires a client certificate; give `certificate` and `key`"),
)
"""What gRPC says of TLS, in lower case and without underscores, and what to do."""

Answer = TypeVar("Answer")

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


def open_client(address: str, credentials: ClientCredentials = NO_CREDENTIALS) -> pa.flight.FlightClient:
    """A Flight client of the owner at an address: the one place that connects. It opens no socket yet.

    It always verifies the server's certificate, and sends the token with every call.
    """
    check_grpc()
    is_tls = address.startswith(("grpc+tls://", "grpcs://"))
    options: dict[str, Any] = {"generic_options": list(_OPTIONS)}
    if credentials.has_token:
        if not is_tls and not is_loopback(_host(address)):
            raise InvalidInput(
                f"a token is not sent to {address:.200} in clear text; use grpc+tls://host:port", field="address"
            )
        options["middleware"] = [_SendToken(TokenReader(credentials))]
    if is_tls:
        options |= {
            "tls_root_certs": credentials.ca,
            "cert_chain": credentials.certificate,
            "private_key": credentials.key,
            "override_hostname": credentials.pinned_name,
        }
        options = {name: value for name, value in options.items() if value is not None}
    try:
        return pa.flight.connect(address, **options)
    except (pa.ArrowException, ValueError) as error:
        hint = "grpc://host:port, or grpc+tls://host:port for TLS"
        raise InvalidInput(f"{address!r:.200} is no address ({error}); use {hint}") from None


def _host(address: str) -> str | None:
    try:
        return urlsplit(address).hostname
    except ValueError:
        return None


class _SendToken(pa.flight.ClientMiddlewareFactory):  # type: ignore[misc]
    """Adds the current token to every call, of any kind."""

    def __init__(self, tokens: TokenReader) -> None:
        super().__init__()
        self._tokens = tokens

    def start_call(self, info: Any) -> Any:  # noqa: ARG002 - every call alike
        return _Bearer(self._tokens.read())


class _Bearer(pa.flight.ClientMiddleware):  # type: ignore[misc]
    def __init__(self, token: str | None) -> None:
        super().__init__()
        self._token = token

    def sending_headers(self) -> dict[str, str]:
        return {} if self._token is None else {"authorization": f"Bearer {self._token}"}


def act_on(client: pa.flight.FlightClient, address: str, action: str, body: bytes, seconds_max: float) -> Any:
    """What the owner answers to an action, or its error."""
    options = pa.flight.FlightCallOptions(timeout=seconds_max)
    try:
        (result,) = client.do_action(pa.flight.Action(action, body), options)
    except FAILURES as error:
        raise error_of(error, address) from None
    return json.loads(result.body.to_pybytes())


def error_of(error: BaseException | None, address: str) -> FrazilError:
    """The owner's own error, where it was one; else the connection failed: `OwnerUnreachable`."""
    details = getattr(error, "extra_info", None)
    if details:
        return from_dict(json.loads(details))
    text = (str(error).splitlines() or ["the stream ended"])[0]
    for kind, ours in _REFUSALS:
        if isinstance(error, kind):
            return from_dict({"error": ours.code, "message": text[:300]})
    said = str(error).lower().replace("_", " ")
    hint = next((hint for sign, hint in _TLS_HINTS if sign in said), None)
    return OwnerUnreachable(address, text[:300] if hint is None else hint)


class Connection:
    def __init__(
        self, address: str, give_up_ms: int, clock: Clock, credentials: ClientCredentials = NO_CREDENTIALS
    ) -> None:
        self.flight = open_client(address, credentials)
        keep_after_fork(self)
        self.process = OwnProcess(f"the connection to {address}", FORKED_FROM_GRPC)
        self.address = address
        self.give_up_ms = give_up_ms
        self._clock = clock
        self.closed = False

    def act(self, action: str, **value: Any) -> Any:
        """Return the owner's answer or raise its error; `OwnerUnreachable` if it does not answer."""
        self.check_open()
        return act_on(self.flight, self.address, action, json.dumps(value).encode(), CALL_SECONDS_MAX)

    def act_until(self, action: str, **value: Any) -> Any:
        """Call with retries, for idempotent actions: waits for an owner that is unavailable."""
        return self.tried(lambda: self.act(action, **value), lambda: self.closed)

    def tried(self, attempt: Callable[[], Answer], ended: Callable[[], bool]) -> Answer:
        """Retry until it succeeds or the time is up; a permanent error is raised at once."""
        since_us, attempts = self._clock.monotonic_us(), 0
        while True:
            try:
                return attempt()
            except FrazilError as error:
                waited_ms = (self._clock.monotonic_us() - since_us) // 1_000
                if not is_temporary(error) or waited_ms >= self.give_up_ms or self.closed or ended():
                    raise
            attempts += 1
            threading.Event().wait(delay_seconds(attempts))

    def error_of(self, error: BaseException | None) -> FrazilError:
        return error_of(error, self.address)

    def check_open(self) -> None:
        self.process.check()
        if self.closed:
            raise Closed(f"the connection to {self.address}")

    def close(self) -> None:
        if not self.process.is_here:
            return  # the parent still uses it
        self.closed = True
        self.flight.close()


def is_temporary(error: FrazilError) -> bool:
    """Whether the same call may succeed on another connection, or once the owner is back."""
    return isinstance(error, OwnerUnreachable | Closed) or type(error).code == "try_later"


def delay_seconds(attempt: int) -> float:
    """Back-off with jitter before the next attempt."""
    return jittered(backoff(attempt, first=DELAY_SECONDS_MIN, limit=DELAY_SECONDS_MAX))

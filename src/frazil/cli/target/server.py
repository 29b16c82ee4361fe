"""The server of a verb: the named one, else the owner of the data folder, else none.

Command-line options override the environment: `--data` with FRAZIL_SERVER set selects the folder.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from frazil.cli.target.credentials import context_of, named_credentials
from frazil.cli.target.folder import settings_on_disk
from frazil.core.addresses import is_loopback
from frazil.core.cluster import http_address
from frazil.core.credentials import NO_CREDENTIALS, ClientCredentials, TokenReader
from frazil.core.errors import FrazilError, InvalidInput, NotOwner, ServerNeeded, ServerUnreachable, TryLater
from frazil.core.errors.codec import from_dict
from frazil.core.names import TopicName

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

VARIABLE = "FRAZIL_SERVER"
CALL_SECONDS_MAX = 60.0
PAGE_MAX = 1_000
OWNERS_MAX = 5
"""How often a call follows a topic to another broker: it may move meanwhile."""


def named_server(server: str | None, data: Path | None, config: Path | None = None) -> Server | None:
    address = server or (os.environ.get(VARIABLE) if data is None else None)
    return Server(address, credentials=named_credentials(config)) if address else None


def refuse_server(server: str | None, data: Path | None, command: str, why: str) -> None:
    """Refuse for verbs that change the files of the log, which no server may have open."""
    named = named_server(server, data)
    if named is not None:
        raise InvalidInput(
            f"--server: the server at {named.address} writes to {why}; stop it, run `{command} --data FOLDER` on its "
            "host, and start it again",
            field="server",
        )


def find_server(server: str | None, data: Path | None, config: Path | None) -> Server | None:
    """Return None if none is named and none owns the folder; a stale file of a dead server is ignored."""
    named = named_server(server, data, config)
    if named is not None:
        return named
    from frazil.log.folder.ownership import served_by

    settings = settings_on_disk(data, config)
    served = served_by(settings)
    if served is None or "http" not in served:
        return None
    from frazil.node.access.served import served_credentials

    http = served_credentials(settings, served, "http")
    flight = served_credentials(settings, served) if "flight" in served else http
    return Server(served["http"], served.get("flight"), credentials=http, flight_credentials=flight)


def need_server(server: str | None, data: Path | None, config: Path | None) -> Server:
    found = find_server(server, data, config)
    if found is None:
        raise ServerNeeded(str(settings_on_disk(data, config).data))
    return found


def topic_path(topic: str, *more: str) -> str:
    name = TopicName.parse(topic)
    return "/".join(["/v1/topics", name.namespace, name.topic, *(quote(part, safe="") for part in more)])


class Server:
    """A client for the HTTP API of `frazil serve`. Its errors are raised as the original error.

    A call for a topic of another broker of the cluster is made there. Only an answer of this server says where: it was
    verified before it got the credentials.
    """

    def __init__(
        self,
        address: str,
        flight: str | None = None,
        *,
        call_seconds_max: float = CALL_SECONDS_MAX,
        credentials: ClientCredentials = NO_CREDENTIALS,
        flight_credentials: ClientCredentials | None = None,
    ) -> None:
        try:
            parts = urlsplit(address)
            usable = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        except ValueError:
            usable = False
        if not usable:
            raise InvalidInput(f"--server: {address!a:.200} is no address; use http://host:port", field="server")
        self.address = address.rstrip("/")
        self._flight = flight
        self._call_seconds_max = call_seconds_max
        self.credentials = credentials
        self.flight_credentials = flight_credentials or credentials
        """For the server's Flight address."""
        self._tokens = TokenReader(credentials)
        self._brokers: dict[str, Server] = {}
        self._may_send_token = parts.scheme == "https" or is_loopback(parts.hostname)

    @cached_property
    def _straight(self) -> OpenerDirector:
        """Connect without a proxy, and follow no redirect, which could take the token elsewhere."""
        from urllib.request import HTTPRedirectHandler, HTTPSHandler, ProxyHandler, build_opener

        class Stay(HTTPRedirectHandler):
            def redirect_request(self, *_: Any) -> None:
                return None

        handlers: list[Any] = [ProxyHandler({}), Stay()]
        if self.address.startswith("https:"):
            handlers.append(HTTPSHandler(context=context_of(self.credentials)))
        return build_opener(*handlers)

    def quick(self, call_seconds_max: float) -> Server:
        """Return the same server with another limit."""
        return Server(
            self.address,
            self._flight,
            call_seconds_max=call_seconds_max,
            credentials=self.credentials,
            flight_credentials=self.flight_credentials,
        )

    def _authorization(self) -> dict[str, str]:
        token = self._tokens.read()
        if token is None:
            return {}
        if not self._may_send_token:
            raise InvalidInput(f"a token is not sent to {self.address} in clear text; use https://", field="server")
        return {"Authorization": f"Bearer {token}"}

    def flight(self) -> str:
        """Return the server's Flight address."""
        if self._flight is None:
            self._flight = self.get("/v1/server")["flight"]
        if self._flight is None:
            raise TryLater(f"the server at {self.address} has not opened its Flight door yet; try again")
        return self._flight

    def get(self, path: str, **query: Any) -> Any:
        given = {name: value for name, value in query.items() if value is not None}
        return self._json("GET", path + (f"?{urlencode(given)}" if given else ""))

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json("POST", path, body)

    def post_to_owner(self, path: str, body: Mapping[str, Any]) -> tuple[Server, Any]:
        """Return the broker that has answered too: what was started runs there."""
        return self._answered("POST", path, body)

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json("PUT", path, body)

    def delete(self, path: str, **query: Any) -> Any:
        return self._json("DELETE", path + (f"?{urlencode(query)}" if query else ""))

    def all(self, path: str, items: str = "items") -> list[Any]:
        """Fetch every entry of a paginated list."""
        found: list[Any] = []
        after: Any = None
        while True:
            page = self.get(path, limit=PAGE_MAX, after=after)
            found += page[items]
            after = page["next"]
            if after is None:
                return found

    def ready(self) -> dict[str, Any]:
        """Return the answer of `/health/ready`, even if the server is not ready."""
        status, answer = self._call("GET", "/health/ready")
        return dict(self._parsed("GET /health/ready", status, answer))

    def metrics(self) -> str:
        """Return the Prometheus metrics."""
        status, answer = self._call("GET", "/metrics")
        if status != 200:
            raise self._stranger("GET /metrics", status)
        return answer.decode()

    def broker(self, broker_id: str, address: str) -> Server:
        """Return another broker of the cluster, at the address that this one has announced."""
        if address == self.address:
            return self
        if self.address.startswith("https:") and not address.startswith("https:"):
            raise InvalidInput(f"the broker {broker_id} is at {address}, without TLS: it is not called", field="server")
        found = self._brokers.get(address)
        if found is None:
            found = self._brokers[address] = Server(
                address, call_seconds_max=self._call_seconds_max, credentials=self.credentials.for_other_brokers
            )
        return found

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return self._answered(method, path, body)[1]

    def _answered(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[Server, Any]:
        server, followed = self, 0
        while True:
            try:
                return server, server._asked(method, path, body)
            except NotOwner as elsewhere:
                address = http_address(elsewhere.fields["addresses"])
                if address is None or followed == OWNERS_MAX:
                    raise
                if followed:  # it moves: the brokers do not agree yet
                    threading.Event().wait(elsewhere.fields["retry_after_ms"] / 1_000)
                followed += 1
                server = self.broker(elsewhere.fields["broker_id"], address)

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        status, answer = self._call(method, path, body)
        parsed = self._parsed(f"{method} {path}", status, answer)
        if status < 300:
            return parsed
        if not isinstance(parsed, dict) or parsed.get("error") in (None, "not_found", "method_not_allowed"):
            raise self._stranger(f"{method} {path}", status)
        raise from_dict(parsed)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        import http.client
        import urllib.error
        from urllib.request import Request

        headers = {"Accept": "application/json, text/plain", **self._authorization()}
        data = None
        if body is not None:
            data, headers["Content-Type"] = json.dumps(body).encode(), "application/json"
        request = Request(self.address + path, data, headers, method=method)  # noqa: S310 - http(s) only
        try:
            with self._straight.open(request, timeout=self._call_seconds_max) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ServerUnreachable(self.address, _why(reason)) from None

    def _parsed(self, call: str, status: int, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except ValueError:
            raise self._stranger(call, status) from None

    def _stranger(self, call: str, status: int) -> FrazilError:
        return FrazilError(
            f"{self.address} answers {call} with {status}: it is no Frazil, or one of another version; "
            "fix --server, or see `frazil version` on both sides",
            address=self.address,
            status=status,
        )


def _why(reason: Any) -> str:
    """Say what to do about a failed verification."""
    text = getattr(reason, "verify_message", None)
    if text:
        return f"its certificate does not verify: {text}; set FRAZIL_CA or client.ca to the authority that signed it"
    if getattr(reason, "reason", None) == "WRONG_VERSION_NUMBER":
        return "it has no TLS; use http://"
    if "CERTIFICATE_REQUIRED" in str(reason).upper():
        return "it requires a client certificate: set client.certificate and client.key"
    return getattr(reason, "strerror", None) or str(reason)

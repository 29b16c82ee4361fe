"""The server that a verb speaks to: the one that is named, else the one that owns the data folder, else none.

What is given on the command line stands above the environment: `--data` beside FRAZIL_SERVER asks for the folder.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode, urlsplit

from frazil.cli.folder import settings_on_disk
from frazil.core.error_forms import from_dict
from frazil.core.errors import FrazilError, InvalidInput, ServerNeeded, ServerUnreachable, TryLater
from frazil.core.names import TopicName

if TYPE_CHECKING:
    from urllib.request import OpenerDirector

VARIABLE = "FRAZIL_SERVER"
CALL_SECONDS_MAX = 60.0
PAGE_MAX = 1_000


def named_server(server: str | None, data: Path | None) -> Server | None:
    address = server or (os.environ.get(VARIABLE) if data is None else None)
    return Server(address) if address else None


def refuse_server(server: str | None, data: Path | None, command: str, why: str) -> None:
    """For what changes the files of the log, which no server may have open meanwhile."""
    named = named_server(server, data)
    if named is not None:
        raise InvalidInput(
            f"--server: the server at {named.address} writes to {why}; stop it, run `{command} --data FOLDER` on its "
            "host, and start it again",
            field="server",
        )


def find_server(server: str | None, data: Path | None, config: Path | None) -> Server | None:
    """None where none is named and none owns the folder; a file left by one that has died is not believed."""
    named = named_server(server, data)
    if named is not None:
        return named
    from frazil.log.ownership import served_by

    told = served_by(settings_on_disk(data, config))
    return None if told is None or "http" not in told else Server(told["http"], told.get("flight"))


def need_server(server: str | None, data: Path | None, config: Path | None) -> Server:
    found = find_server(server, data, config)
    if found is None:
        raise ServerNeeded(str(settings_on_disk(data, config).data))
    return found


def topic_path(topic: str, *more: str) -> str:
    name = TopicName.parse(topic)
    return "/".join(["/v1/topics", name.namespace, name.topic, *(quote(part, safe="") for part in more)])


class Server:
    """`frazil serve` over HTTP. What it refuses is raised as the error that it had."""

    def __init__(self, address: str, flight: str | None = None, *, call_seconds_max: float = CALL_SECONDS_MAX) -> None:
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

    @cached_property
    def _straight(self) -> OpenerDirector:
        """Past any proxy."""
        from urllib.request import ProxyHandler, build_opener

        return build_opener(ProxyHandler({}))

    def flight(self) -> str:
        """The address of its Flight door."""
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

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._json("PUT", path, body)

    def delete(self, path: str, **query: Any) -> Any:
        return self._json("DELETE", path + (f"?{urlencode(query)}" if query else ""))

    def all(self, path: str, items: str = "items") -> list[Any]:
        """Every entry of a list that comes in pages."""
        found: list[Any] = []
        after: Any = None
        while True:
            page = self.get(path, limit=PAGE_MAX, after=after)
            found += page[items]
            after = page["next"]
            if after is None:
                return found

    def ready(self) -> dict[str, Any]:
        """What `/health/ready` says, also where it is not ready."""
        status, answer = self._call("GET", "/health/ready")
        return dict(self._parsed("GET /health/ready", status, answer))

    def metrics(self) -> str:
        """The figures for Prometheus."""
        status, answer = self._call("GET", "/metrics")
        if status != 200:
            raise self._stranger("GET /metrics", status)
        return answer.decode()

    def _json(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        status, answer = self._call(method, path, body)
        told = self._parsed(f"{method} {path}", status, answer)
        if status < 400:
            return told
        if not isinstance(told, dict) or told.get("error") in (None, "not_found", "method_not_allowed"):
            raise self._stranger(f"{method} {path}", status)
        raise from_dict(told)

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, bytes]:
        import http.client
        import urllib.error
        from urllib.request import Request

        headers = {"Accept": "application/json, text/plain"}
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
            raise ServerUnreachable(self.address, getattr(reason, "strerror", None) or str(reason)) from None

    def _parsed(self, call: str, status: int, answer: bytes) -> Any:
        try:
            return json.loads(answer)
        except ValueError:
            raise self._stranger(call, status) from None

    def _stranger(self, call: str, status: int) -> FrazilError:
        return FrazilError(
            f"{self.address} answers {call} with {status}: it is no Frazil, or one of another version; "
            "mend --server, or see `frazil version` on both sides",
            address=self.address,
            status=status,
        )

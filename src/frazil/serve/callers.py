"""Which HTTP requests the admin door answers, by the names that they carry.

A page of another site whose name is made to point at this host (DNS rebinding) is of the same origin to a browser, but
still sends its own name as `Host`. So only names that nobody else can own are answered: addresses, `localhost`, this
machine's name, and those that the settings allow.
"""

from __future__ import annotations

import ipaddress
import json
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from frazil.core.errors import FrazilError, HostRefused, OriginRefused
from frazil.serve.request_ids import App, Receive, Scope, Send

ANY_HOST = "*"
_READING = ("GET", "HEAD", "OPTIONS")


class CheckedCallers:
    """Around an HTTP application: 421 for a foreign `Host`, 403 for a change that another site's page asks for."""

    def __init__(self, app: App, listening: str, allowed: Sequence[str]) -> None:
        self._app = app
        self._allowed = frozenset(name.lower().rstrip(".") for name in allowed)
        self._own = frozenset((listening.lower(), socket.gethostname().lower(), "localhost"))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refused = self._refused(scope) if scope["type"] == "http" else None
        if refused is None:
            await self._app(scope, receive, send)
        else:
            await _answer(*refused, send)

    def _refused(self, scope: Scope) -> tuple[int, FrazilError] | None:
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"] if name in (b"host", b"origin")]
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        for host in hosts:
            if not self._is_known(_name_of(host)):
                return 421, HostRefused(host)
        if scope.get("method") in _READING:
            return None
        for origin in origins:
            if not self._is_own_origin(origin, hosts):
                return 403, OriginRefused(origin)
        return None

    def _is_known(self, name: str | None) -> bool:
        if name is None:
            return False
        if ANY_HOST in self._allowed or name in self._allowed or name in self._own:
            return True
        return name.endswith(".localhost") or _is_address(name)

    def _is_own_origin(self, origin: str, hosts: Sequence[str]) -> bool:
        """The page came from this door: from the same name and port, or from a name that is allowed."""
        netloc = urlsplit(origin).netloc.lower()
        if netloc and netloc in (host.lower() for host in hosts):
            return True
        name = _name_of(netloc)
        return name is not None and name in self._allowed


def _name_of(host: str) -> str | None:
    """The name or address of a `Host`, without its port; None if it is neither."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises for what is no port
    except ValueError:
        return None
    name = (parts.hostname or "").rstrip(".")
    return name if name and parts.netloc == host and "@" not in host else None


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _answer(status: int, error: FrazilError, send: Send) -> None:
    content = json.dumps(error.as_dict()).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(content))]
    await send({"type": "http.response.start", "status": status, "headers": [*headers, (b"connection", b"close")]})
    await send({"type": "http.response.body", "body": content})

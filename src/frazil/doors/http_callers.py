"""Host and Origin checks of HTTP requests.

With DNS rebinding, a page of another site has the same origin as this server for a browser, but still sends its own
name as `Host`. So only names that no other party can own are accepted: addresses, `localhost`, this machine's name, and
those that the settings allow.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from urllib.parse import urlsplit

from frazil.core.errors import FrazilError, HostRefused, InvalidInput, OriginRefused
from frazil.node.request_ids import Scope

ANY_HOST = "*"
_READING = ("GET", "HEAD", "OPTIONS")


class CallerRules:
    """Refuses a foreign `Host`, and a change requested by another site's page.

    Also a request with two lengths, whose connection must end: a proxy may have taken the other one, and what follows
    for another request.
    """

    def __init__(self, listening: str, allowed: Sequence[str], origins: Sequence[str] = ()) -> None:
        """`allowed` are names, `origins` are exact origins of pages that may request changes."""
        self._origins = frozenset(origins)
        self._allowed = frozenset(name.lower().rstrip(".") for name in allowed)
        self._own = frozenset((listening.lower(), socket.gethostname().lower(), "localhost"))

    def refused(self, scope: Scope) -> FrazilError | None:
        """Return why a request is refused; None for one that is not."""
        given = {name for name, _ in scope["headers"]}
        if b"content-length" in given and b"transfer-encoding" in given:
            return InvalidInput(
                "the request has content-length and transfer-encoding; send one", field="content-length"
            )
        headers = [(name, value.decode("latin-1")) for name, value in scope["headers"] if name in (b"host", b"origin")]
        hosts = [value for name, value in headers if name == b"host"]
        origins = [value for name, value in headers if name == b"origin"]
        for host in hosts:
            if not self._is_known(_name_of(host)):
                return HostRefused(host)
        if scope.get("method") in _READING:
            return None
        for origin in origins:
            if not self._is_own_origin(origin, hosts):
                return OriginRefused(origin)
        return None

    def _is_known(self, name: str | None) -> bool:
        if name is None:
            return False
        if ANY_HOST in self._allowed or name in self._allowed or name in self._own:
            return True
        return name.endswith(".localhost") or _is_address(name)

    def _is_own_origin(self, origin: str, hosts: Sequence[str]) -> bool:
        """Whether the page came from this server: the same name and port, or an allowed name."""
        if origin in self._origins:
            return True
        netloc = urlsplit(origin).netloc.lower()
        if netloc and netloc in (host.lower() for host in hosts):
            return True
        name = _name_of(netloc)
        return name is not None and name in self._allowed


def _name_of(host: str) -> str | None:
    """Return the name or address in a `Host`, without its port; None if it is invalid."""
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port  # raises for an invalid port
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

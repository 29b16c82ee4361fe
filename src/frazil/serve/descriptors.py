"""How the doors share the descriptors of the process, so that callers can't take those that the log needs.

HTTP, Flight and Danube clients may each hold a fifth of the limit as connections, admin tools of Danube a twentieth.
The rest is for segments, tables and metadata.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource

from uvicorn.protocols.http.h11_impl import H11Protocol

from frazil.core.errors import TryLater

SHARES, ADMIN_SHARES = 5, 20
CONNECTIONS_MAX = 20_000
FIRST_BYTE_S_MAX = 30.0
"""A connection that has sent nothing for so long is closed."""

_log = logging.getLogger("frazil.serve")


def raise_limit() -> None:
    """Take all the descriptors that the system allows: the usual soft limit of 1,024 is for programs with `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            _log.warning("the limit of open files stays at %d: %s", soft, error)
            return
    _log.info("at most %d open files, %d connections to each door", hard, connections_max())


def connections_max() -> int:
    """Of one door, by the limit as it is now: it can be changed from outside."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, soft // SHARES))


def admin_connections_max() -> int:
    return max(1, connections_max() * SHARES // ADMIN_SHARES)


class BoundedHttp(H11Protocol):
    """Answers a connection too many with 503 and closes it."""

    _quiet: asyncio.TimerHandle | None = None
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        limit = connections_max()
        if len(self.connections) >= limit:
            self._is_refused = True
            transport.write(_refusal(limit))
            transport.close()
            return
        super().connection_made(transport)
        self._quiet = self.loop.call_later(FIRST_BYTE_S_MAX, transport.close)

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        self._heard()
        super().data_received(data)

    def eof_received(self) -> None:
        if not self._is_refused:
            super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._heard()
        if not self._is_refused:
            super().connection_lost(exc)

    def _heard(self) -> None:
        if self._quiet is not None:
            self._quiet.cancel()
            self._quiet = None


def _refusal(limit: int) -> bytes:
    what = f"{limit} connections are open, and no more may; close some, or raise the limit of open files"
    content = json.dumps(TryLater(what, limit=limit).as_dict()).encode()
    head = (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    )
    return head + b"content-length: %d\r\n\r\n" % len(content) + content

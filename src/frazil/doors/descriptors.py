"""Limits on the file descriptors of each server, so that connections cannot exhaust those that the log needs.

HTTP, Flight and Danube clients may each use a fifth of the limit for connections, Danube's admin tools a twentieth. The
rest is for segments, tables and metadata.
"""

from __future__ import annotations

import asyncio
import json
import logging
import resource

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from frazil.core.errors import TryLater

SHARES, ADMIN_SHARES = 5, 20
CONNECTIONS_MAX = 20_000
FIRST_BYTE_S_MAX = 30.0
"""A connection that has sent nothing for this long is closed."""
HEADERS_S_MAX = 30.0
"""So is one that takes longer to send the headers of a request, from their first byte on."""
BODY_S_MAX = 60.0
"""So is one that takes longer to send a body after its headers, whether or not the request was answered meanwhile."""
UNREAD_S_MAX = 60.0
UNREAD_BYTES_MIN = 64 * 1024
"""So is one whose client reads less than this of a waiting answer in that time."""

_log = logging.getLogger("frazil.serve")


def raise_limit() -> None:
    """Raise the soft limit to the hard limit: the usual 1,024 is for programs with `select`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (OSError, ValueError) as error:
            _log.warning("the limit of open files stays at %d: %s", soft, error)
            return
    _log.info("at most %d open files, %d connections to each door", hard, connections_max())


def connections_max() -> int:
    """Return the limit of one server, from the current process limit, which may change."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else max(1, min(CONNECTIONS_MAX, soft // SHARES))


def admin_connections_max() -> int:
    return max(1, connections_max() * SHARES // ADMIN_SHARES)


class BoundedHttp(H11Protocol):
    """Answers excess connections with 503 and closes them, and closes those that send or read too slowly.

    uvicorn itself limits only the time from an answer to the next byte, whatever that belongs to.
    """

    _quiet: asyncio.TimerHandle | None = None
    """Closes the connection unless the awaited part of a request is complete in time."""
    _awaited: tuple[str, object] | None = None
    """The part, and the request that it belongs to or follows."""
    _unread: asyncio.TimerHandle | None = None
    _is_refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        limit = connections_max()
        if len(self.connections) >= limit:
            self._is_refused = True
            transport.write(_refusal(limit))
            transport.close()
            return
        super().connection_made(transport)
        self._limit_request()

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        super().data_received(data)
        self._limit_request()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._limit_request()

    def pause_writing(self) -> None:
        if not self._is_refused:
            super().pause_writing()
            self._watch_reader()

    def resume_writing(self) -> None:
        if not self._is_refused:
            super().resume_writing()
            _cancel(self._unread)
            self._unread = None

    def eof_received(self) -> None:
        if not self._is_refused:
            super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        _cancel(self._quiet)
        _cancel(self._unread)
        if not self._is_refused:
            super().connection_lost(exc)

    def _limit_request(self) -> None:
        """Begin to wait for the next part of a request, once for each part, or end the wait."""
        if self.transport.is_closing():
            self._watch_reader()
            return
        part, seconds_max = self._next_part()
        awaited = (part, self.cycle)
        if awaited != self._awaited:
            self._awaited = awaited
            _cancel(self._quiet)
            self._quiet = None if seconds_max is None else self.loop.call_later(seconds_max, self._end)

    def _next_part(self) -> tuple[str, float | None]:
        if self.conn.their_state is h11.SEND_BODY:
            return "body", BODY_S_MAX
        if self.conn.their_state is not h11.IDLE:
            return "answer", None
        return ("headers", HEADERS_S_MAX) if self.conn.trailing_data[0] else ("request", FIRST_BYTE_S_MAX)

    def _end(self) -> None:
        self.transport.close()  # after what is waiting to be sent
        self._watch_reader()

    def _watch_reader(self) -> None:
        if self._unread is None and (waiting := self.transport.get_write_buffer_size()):
            self._unread = self.loop.call_later(UNREAD_S_MAX, self._check_reader, waiting)

    def _check_reader(self, before: int) -> None:
        self._unread = None
        waiting = self.transport.get_write_buffer_size()
        if waiting and before - waiting < UNREAD_BYTES_MIN:
            self.transport.abort()
        else:
            self._watch_reader()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()


def _refusal(limit: int) -> bytes:
    what = f"{limit} connections are open, and no more may; close some, or raise the limit of open files"
    content = json.dumps(TryLater(what, limit=limit).as_dict()).encode()
    head = (
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n"
    )
    return head + b"content-length: %d\r\n\r\n" % len(content) + content

"""Fetch a small document from an issuer: with limits on time and size, and never from another host."""

from __future__ import annotations

import contextlib
import functools
import http.client
import socket
import threading
import urllib.error
import urllib.request
from email.message import Message
from typing import IO, Any
from urllib.parse import urlsplit

TIMEOUT_SECONDS = 5
TOTAL_SECONDS = 15
_CHUNK_BYTES = 16 * 1024


class _Deadline:
    """Closes the connections of a fetch when its time is up: a server may send its headers a byte at a time."""

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._guard = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True
        self._timer.start()

    def add(self, one: socket.socket) -> None:
        with self._guard:
            self._sockets.append(one)
            is_over = self.is_over
        if is_over:
            _shut(one)

    def stop(self) -> None:
        self._timer.cancel()

    def _end(self) -> None:
        with self._guard:
            self.is_over = True
            ended = list(self._sockets)
        for one in ended:
            _shut(one)


def _shut(one: socket.socket) -> None:
    with contextlib.suppress(OSError):  # it is closed already
        socket.socket.shutdown(one, socket.SHUT_RDWR)  # not that of TLS, whose state belongs to the reading thread


class _PlainConnection(http.client.HTTPConnection):
    def __init__(self, *given: Any, deadline: _Deadline, **named: Any) -> None:
        super().__init__(*given, **named)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self._deadline.add(self.sock)


class _TlsConnection(http.client.HTTPSConnection):
    def __init__(self, *given: Any, deadline: _Deadline, **named: Any) -> None:
        super().__init__(*given, **named)
        self._deadline = deadline

    def connect(self) -> None:
        super().connect()
        self._deadline.add(self.sock)


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_PlainConnection, deadline=self._deadline), req)


class _Tls(urllib.request.HTTPSHandler):
    def __init__(self, deadline: _Deadline) -> None:
        super().__init__()
        self._deadline = deadline

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(functools.partial(_TlsConnection, deadline=self._deadline), req)


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follow redirects to the same scheme, host and port alone."""

    max_redirections = 3

    def redirect_request(  # noqa: PLR0913, RUF100 - as in the base class
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: Message,
        newurl: str,
    ) -> urllib.request.Request | None:
        before, after = urlsplit(req.full_url), urlsplit(newurl)
        if (before.scheme, before.netloc) != (after.scheme, after.netloc):
            raise OSError(0, "it redirects to another host")
        return super().redirect_request(req, fp, code, msg, headers, newurl)  # type: ignore[arg-type]


def fetched(url: str, bytes_max: int) -> bytes:
    """Return the document at an http or https address, whose certificate is verified. Raises `OSError`."""
    if not url.startswith(("https://", "http://")):
        raise OSError(0, "it is neither an https nor an http address")
    deadline = _Deadline(TOTAL_SECONDS)
    opener = urllib.request.build_opener(_SameHost(), _Plain(deadline), _Tls(deadline))
    request = urllib.request.Request(url, headers={"accept": "application/json", "user-agent": "frazil"})  # noqa: S310
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as answer:
            data = _read(answer, bytes_max)
    except urllib.error.HTTPError as error:
        error.close()
        raise OSError(0, f"it answered with status {error.code}") from None
    except (OSError, http.client.HTTPException, ValueError) as error:
        if deadline.is_over:
            raise _too_slow() from None
        raise _unreachable(error) from None
    finally:
        deadline.stop()
    if deadline.is_over:  # what came may not be all
        raise _too_slow()
    return data


def _too_slow() -> OSError:
    return OSError(0, f"it took longer than {TOTAL_SECONDS} seconds")


def _unreachable(error: Exception) -> OSError:
    if isinstance(error, urllib.error.URLError):
        return OSError(0, f"it can't be reached: {error.reason}")
    if isinstance(error, OSError):
        return error
    return OSError(0, f"it gave no valid answer: {type(error).__name__}")


def _read(answer: http.client.HTTPResponse, bytes_max: int) -> bytes:
    data = b""
    while chunk := answer.read1(_CHUNK_BYTES):
        data += chunk
        if len(data) > bytes_max:
            raise OSError(0, f"it has more than {bytes_max} bytes")
    return data

"""A proxy before the S3 server that fails as stores do: wrong answers, no answer, half an answer, a late answer."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from parts.processes import pause

FAULTS = ("500", "503", "silent", "cut", "slow", "short", "error with 200")
"""InternalError, SlowDown, accepted and never answered, cut in mid-body, answered late, half a body that calls itself
whole, an error that calls itself success."""

SLOW_S = 4.0
"""Longer than the three seconds after which the AWS SDK gives up by itself."""

_CODES = {"403": "AccessDenied", "500": "InternalError", "503": "SlowDown", "507": "InsufficientStorage"}
_WRITES = ("PUT", "POST")


class S3Proxy:
    """`fail` sets what the next requests meet, `mend` ends it."""

    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.met = 0
        self._fault, self._place, self._writes, self._left = "", "", True, 0
        self._guard = threading.Lock()
        self._mended = threading.Event()
        handler = type("Handler", (_Handler,), {"proxy": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def fail(self, fault: str, place: str = "", *, writes: bool = True, times: int = 1_000_000) -> None:
        """Requests that write (or read) a path with `place` in it meet the fault, so many times."""
        with self._guard:
            self._fault, self._place, self._writes, self._left, self.met = fault, place, writes, times, 0
            self._mended.clear()

    def mend(self) -> None:
        with self._guard:
            self._left = 0
            self._mended.set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self.mend()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def _next_fault(self, method: str, path: str) -> str:
        with self._guard:
            if not self._left or self._place not in path or (method in _WRITES) != self._writes:
                return ""
            if self._fault in ("cut", "short", "error with 200") and method == "HEAD":
                return ""  # it has no body to be cut, and a length that is not the object's would be another fault
            self._left -= 1
            self.met += 1
            return self._fault


class _Handler(BaseHTTPRequestHandler):
    proxy: S3Proxy
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        body = self._body()
        fault = self.proxy._next_fault(self.command, self.path)
        with contextlib.suppress(OSError):  # a client that gave up waiting
            self._serve(fault, body)

    do_PUT = do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names that http.server calls

    def _body(self) -> bytes:
        if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(chunks)

    def _serve(self, fault: str, body: bytes) -> None:
        self.close_connection = bool(fault)
        if fault in _CODES:
            return self._answer(int(fault), [("Content-Type", "application/xml")], _error(_CODES[fault]))
        if fault == "silent":
            self.proxy._mended.wait(120)
            return None
        if fault == "slow":
            pause(SLOW_S)
        status, headers, answer = self._forward(body)
        if fault == "short":
            answer = answer[: len(answer) // 2]
        if fault == "error with 200":
            answer = _error("SlowDown")
        return self._answer(status, headers, answer, cut=fault == "cut")

    def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.proxy.target_port, timeout=60)
        left_out = ("connection", "expect", "transfer-encoding", "content-length")
        kept = {name: value for name, value in self.headers.items() if name.lower() not in left_out}
        connection.request(self.command, self.path, body, {**kept, "Content-Length": str(len(body))})
        answer = connection.getresponse()
        found = answer.status, answer.getheaders(), answer.read()
        connection.close()
        return found

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes, *, cut: bool = False) -> None:
        self.send_response_only(status)
        length = str(len(body))
        for name, value in headers:
            if name.lower() == "content-length" and self.command == "HEAD":
                length = value
            elif name.lower() not in ("transfer-encoding", "content-length", "connection"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(int(length) + 100) if cut and not body else length)
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if cut else body)

    def log_message(self, *_: Any) -> None:
        pass


def _error(code: str) -> bytes:
    return f"<Error><Code>{code}</Code><Message>made by the test</Message></Error>".encode()


@contextlib.contextmanager
def s3_proxy_before(target_port: int) -> Iterator[S3Proxy]:
    proxy = S3Proxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

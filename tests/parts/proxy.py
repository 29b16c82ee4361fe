"""A proxy before a catalog that loses answers: HTTP/1.1, one request a connection, faults set by the test."""

from __future__ import annotations

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from parts.processes import pause

FAULTS = ("drop before", "drop after", "500 before", "500 after", "503 before", "503 after", "409 before", "409 after")
"""What the next commit meets, and whether the catalog has seen it by then."""


class Proxy:
    def __init__(self, target_port: int) -> None:
        self.target_port = target_port
        self.faults: list[str] = []
        self.delay_s = 0.0
        self.commits = 0
        self._guard = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(10)

    def next_fault(self) -> str:
        with self._guard:
            self.commits += 1
            return self.faults.pop(0) if self.faults else ""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self._serve()

            do_POST = do_DELETE = do_HEAD = do_GET  # noqa: N815 - the names that http.server calls

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                is_commit = self.command == "POST" and "/tables/" in self.path
                fault, _, when = (proxy.next_fault() if is_commit else "").partition(" ")
                pause(proxy.delay_s if is_commit else 0)
                self.close_connection = True
                if fault and when == "before":
                    return self._fault(fault)
                status, headers, answer = self._forward(body)
                if fault:
                    return self._fault(fault)
                return self._answer(status, headers, answer)

            def _forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                connection = http.client.HTTPConnection("127.0.0.1", proxy.target_port, timeout=60)
                kept = {k: v for k, v in self.headers.items() if k.lower() not in ("connection", "accept-encoding")}
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                found = answer.status, answer.getheaders(), answer.read()
                connection.close()
                return found

            def _fault(self, fault: str) -> None:
                if fault != "drop":
                    self._answer(int(fault), [("Content-Type", "application/json")], _error(int(fault)))

            def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "content-length", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Connection", "close")
                self.end_headers()
                with contextlib.suppress(OSError):  # a client that gave up waiting
                    self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def _error(status: int) -> bytes:
    return b'{"error": {"message": "made by the test", "type": "Fault", "code": %d}}' % status


@contextlib.contextmanager
def proxy_before(target_port: int) -> Iterator[Proxy]:
    proxy = Proxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

"""A door before fake-gcs-server that asks for a token, which that one does not. A process of its own, with three words:
its port, the server's, and the token."""

from __future__ import annotations

import http.client
import http.server
import sys


class Door(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    target_port = 0
    token = ""

    def _forward(self) -> None:
        body = self._body()
        if self.headers.get("Authorization") != f"Bearer {self.token}":
            self._answer(401, [], b'{"error": {"message": "Invalid Credentials"}}')
            return
        passed = {name: value for name, value in self.headers.items() if name.lower() not in _OF_ONE_CONNECTION}
        connection = http.client.HTTPConnection("127.0.0.1", self.target_port, timeout=30)
        try:
            connection.request(self.command, self.path, body, passed)
            answer = connection.getresponse()
            self._answer(answer.status, answer.getheaders(), answer.read())
        finally:
            connection.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = _forward  # noqa: N815

    def _body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        found = b""
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return found

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in _OF_ONE_CONNECTION:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


_OF_ONE_CONNECTION = ("content-length", "transfer-encoding", "connection", "date", "server", "expect")

if __name__ == "__main__":
    Door.target_port, Door.token = int(sys.argv[2]), sys.argv[3]
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Door).serve_forever()

"""Connections of unknown callers that send junk: they leave no lines in the log, which would fill the disk."""

from __future__ import annotations

import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from parts.secured_server import SecuredServer

pytestmark = pytest.mark.timeout(120)

TIMES = 5
WEBSOCKET = b"GET /v1/topics HTTP/1.1\r\nhost: 127.0.0.1\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n"
JUNK = [b"\0\1\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", WEBSOCKET]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SecuredServer]:
    found = SecuredServer(tmp_path, others={"telemetry": {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}}})
    try:
        yield found
    finally:
        found.kill()


def ended(one: socket.socket, data: bytes) -> None:
    one.settimeout(10)
    with contextlib.suppress(OSError):  # it may be closed before all is sent
        one.sendall(data)
        one.shutdown(socket.SHUT_WR)
        while one.recv(4096):
            pass


def test_junk_leaves_no_lines_in_the_log(server: SecuredServer) -> None:
    addresses = server.start()
    names = ("address", "otlp_http", "flight", "danube", "admin", "otlp_grpc")
    doors = [addresses[name].rpartition("//")[2].split(":") for name in names]
    before = server.log().splitlines()
    context = ssl.create_default_context(cafile=str(server.files.ca))
    for host, port in doors:
        for junk in JUNK * TIMES:
            with socket.create_connection((host, int(port))) as plain:
                ended(plain, junk)
    for host, port in doors[:2]:
        for junk in JUNK * TIMES:
            with (
                socket.create_connection((host, int(port))) as plain,
                context.wrap_socket(plain, server_hostname=host) as tls,
            ):
                ended(tls, junk)
    assert server.call("GET", "/v1/topics").status_code == 200
    added = server.log().splitlines()[len(before) :]
    assert [line for line in added if "listening on" not in line] == []  # the server may write that after its addresses

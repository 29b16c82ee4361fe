"""Connections that misuse HTTP/2 on every gRPC door: the memory of the server is bounded, and others are answered."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import psutil
import pytest

from frazil.core.settings import MIB
from parts.http2 import (
    CANCEL,
    CONTINUATION,
    END_HEADERS,
    HEADERS,
    PING,
    RST_STREAM,
    SETTINGS,
    call_of,
    connected,
    field,
    frame,
)
from parts.secured_server import SecuredServer

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]

SECONDS, ANSWER_SECONDS_MAX, GROWTH_BYTES_MAX = 1.0, 10.0, 250 * MIB
CALLS = 50
DOORS = {
    "flight": "/arrow.flight.protocol.FlightService/DoGet",
    "danube": "/danube.Discovery/TopicLookup",
    "admin": "/danube_admin.TopicAdmin/DescribeTopic",
    "otlp_grpc": "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
}
TELEMETRY = {"telemetry": {"enabled": True, "otlp": {"grpc_port": 0, "http_port": 0}}}

Abuse = Callable[[int, str, str], bytes]
"""Returns what to send next, by how often it was called, the path of a call and a header."""


def begun_and_cancelled(number: int, path: str, header: str) -> bytes:
    streams = range(1 + 2 * CALLS * number, 1 + 2 * CALLS * (number + 1), 2)
    asked = call_of(path, header)
    return b"".join(frame(HEADERS, END_HEADERS, one, asked) + frame(RST_STREAM, 0, one, CANCEL) for one in streams)


def begun_without_a_key(number: int, path: str, _: str) -> bytes:
    streams = range(1 + 2 * CALLS * number, 1 + 2 * CALLS * (number + 1), 2)
    return b"".join(frame(HEADERS, END_HEADERS, one, call_of(path)) for one in streams)


def headers_without_end(number: int, _: str, __: str) -> bytes:
    more = frame(CONTINUATION, 0, 1, field(f"x{number}", "y" * 1_000)) * 10
    return (frame(HEADERS, 0, 1, field("a", "b")) if number == 0 else b"") + more


def one_header_many_times(number: int, _: str, __: str) -> bytes:
    """A large header is remembered by HPACK, then named by one byte each."""
    first = frame(HEADERS, 0, 1, field("a", "v" * 3_000, indexed=True)) if number == 0 else b""
    return first + frame(CONTINUATION, 0, 1, b"\xbe" * 10_000)


def pings(_: int, __: str, ___: str) -> bytes:
    return frame(PING, 0, 0, b"12345678") * 200


def settings(_: int, __: str, ___: str) -> bytes:
    return frame(SETTINGS, 0, 0, b"\0\3\0\0\0\x64") * 200


ABUSES: list[Abuse] = [
    begun_and_cancelled,
    begun_without_a_key,
    headers_without_end,
    one_header_many_times,
    pings,
    settings,
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServer]:
    found = SecuredServer(tmp_path_factory.mktemp("abused"), others=TELEMETRY)
    found.addresses = found.start()
    try:
        yield found
    finally:
        found.kill()


class Asking(threading.Thread):
    """Another client, which asks all the time."""

    def __init__(self, server: SecuredServer) -> None:
        super().__init__()
        self._server = server
        self._ended = threading.Event()
        self.seconds: list[float] = []
        self.statuses: set[int] = set()

    def run(self) -> None:
        is_first = True
        while is_first or not self._ended.wait(0.2):
            is_first = False
            begun = time.monotonic()
            self.statuses.add(self._server.call("GET", "/v1/whoami").status_code)
            self.seconds.append(time.monotonic() - begun)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self.join()


@pytest.mark.parametrize("abuse", ABUSES)
@pytest.mark.parametrize("door", DOORS)
def test_abuse_of_http2_holds_little_and_stalls_nobody(server: SecuredServer, door: str, abuse: Abuse) -> None:
    assert server.process is not None
    process, header = psutil.Process(server.process.pid), f"Bearer {server.key()}"
    before, number = process.memory_info().rss, 0
    with connected(server.addresses[door], server.files.ca) as one, Asking(server) as other:
        end = time.monotonic() + SECONDS
        with contextlib.suppress(OSError):  # the server may close the connection
            while time.monotonic() < end:
                one.sendall(abuse(number, DOORS[door], header))
                number += 1
    assert number
    assert other.statuses == {200}
    assert max(other.seconds) < ANSWER_SECONDS_MAX
    assert process.memory_info().rss - before < GROWTH_BYTES_MAX

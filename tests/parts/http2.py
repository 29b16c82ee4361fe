"""HTTP/2 written by hand, for a client that does what no library lets it do."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

DATA, HEADERS, RST_STREAM, SETTINGS, PING, CONTINUATION = 0, 1, 3, 4, 6, 9
END_HEADERS = 4
CANCEL = struct.pack(">I", 8)
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
    return struct.pack(">I", len(content))[1:] + bytes((kind, flags)) + struct.pack(">I", stream) + content


def field(name: str, value: str, *, indexed: bool = False) -> bytes:
    """A header as HPACK: a literal, which the receiver remembers if it is `indexed`."""
    parts = (_length(len(one)) + one.encode() for one in (name, value))
    return (b"\x40" if indexed else b"\x00") + b"".join(parts)


def _length(value: int) -> bytes:
    if value < 127:
        return bytes((value,))
    found, value = [127], value - 127
    while value >= 128:
        found.append(value % 128 + 128)
        value //= 128
    return bytes((*found, value))


def call_of(path: str, authorization: str | None = None) -> bytes:
    """The headers of a gRPC call."""
    names = {":method": "POST", ":scheme": "https", ":path": path, ":authority": "localhost"}
    names |= {"content-type": "application/grpc", "te": "trailers"}
    names |= {} if authorization is None else {"authorization": authorization}
    return b"".join(field(*one) for one in names.items())


@contextlib.contextmanager
def connected(address: str, ca: Path) -> Iterator[ssl.SSLSocket]:
    """A connection that reads and forgets all answers."""
    host, _, port = address.rpartition("//")[2].partition(":")
    context = ssl.create_default_context(cafile=str(ca))
    context.set_alpn_protocols(["h2"])
    with (
        socket.create_connection((host, int(port))) as plain,
        context.wrap_socket(plain, server_hostname=host) as found,
    ):
        found.settimeout(10)
        found.sendall(PREFACE + frame(SETTINGS, 0, 0))
        reading = threading.Thread(target=_forget, args=(found,))
        reading.start()
        try:
            yield found
        finally:
            with contextlib.suppress(OSError):  # the server has closed it
                socket.socket.shutdown(found, socket.SHUT_RDWR)
            reading.join()


def _forget(one: ssl.SSLSocket) -> None:
    with contextlib.suppress(OSError):
        while one.recv(65_536):
            pass

"""A proxy that forwards bytes, and on request cuts all connections after so many more of them, in either direction."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


class CutProxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._armed: tuple[str, int] | None = None
        self.passed = {"calls": 0, "answers": 0}
        self.used: dict[str, int] = {}
        self.cuts = 0
        self.address = f"grpc://127.0.0.1:{self._listener.getsockname()[1]}"

    def cut_after(self, what: str, count: int) -> None:
        """`what` is calls or answers. So many more of its bytes arrive, and then nothing on any connection."""
        with self._guard:
            self._armed = (what, count)

    def cut_now(self) -> None:
        with self._guard:
            self._cut_all()

    def start(self) -> None:
        self._begin(self._accept)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_now()
        for thread in self._threads:
            thread.join(10)

    def _begin(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the end: the listener was closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(("127.0.0.1", self._target_port))
                except OSError:
                    client.close()
                    continue
                with self._guard:
                    self._open |= {client, server}
                self._begin(self._pump, client, server, "calls")
                self._begin(self._pump, server, client, "answers")

    def _pump(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._guard:
                    data, cut = self._allowed(what, data)
                    if data:
                        target.sendall(data)
                    self.passed[what] += len(data)
                    if cut:
                        self._cut_all()
                        break
        _end(source, target)

    def _allowed(self, what: str, data: bytes) -> tuple[bytes, bool]:
        if self._armed is None or self._armed[0] != what:
            return data, False
        left = self._armed[1] - len(data)
        if left > 0:
            self._armed = (what, left)
            return data, False
        count, self._armed = self._armed[1], None
        self.cuts += 1
        return data[:count], True

    def _cut_all(self) -> None:
        _end(*self._open)
        self._open.clear()


def _end(*ends: socket.socket) -> None:
    for end in ends:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextlib.contextmanager
def cut_proxy(target_port: int) -> Iterator[CutProxy]:
    proxy = CutProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

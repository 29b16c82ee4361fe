"""A proxy on loopback that forwards bytes; what it does to them beyond that is for others to say."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable


class ForwardingProxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        self._refusing = False
        self.port: int = self._listener.getsockname()[1]

    def start(self) -> None:
        self._begin(self._accept)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut_now()
        for thread in self._threads:
            thread.join(10)

    def cut_now(self) -> None:
        with self._guard:
            self._cut_all()

    def _pump(self, source: socket.socket, target: socket.socket, what: str) -> None:
        """Forward `calls` of a client, or `answers` to it, until the connection ends."""
        raise NotImplementedError

    def _cut_all(self) -> None:
        end(*self._open)
        self._open.clear()

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
                    if self._refusing:
                        end(client, server)
                        continue
                    self._open |= {client, server}
                self._begin(self._pump, client, server, "calls")
                self._begin(self._pump, server, client, "answers")


def end(*ends: socket.socket) -> None:
    for one in ends:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()

"""A balancer in front of several servers: each connection goes to one that accepts."""

from __future__ import annotations

import contextlib
import itertools
import socket
from collections.abc import Iterator, Sequence

from parts.forwarding import ForwardingProxy, end


class Balancer(ForwardingProxy):
    def __init__(self, ports: Sequence[int]) -> None:
        super().__init__(ports[0])
        self._turns = itertools.cycle(range(len(ports)))
        self._ports = tuple(ports)
        self.url = f"http://127.0.0.1:{self.port}"

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener was closed
            while True:
                client, _ = self._listener.accept()
                server = self._connected()
                if server is None:
                    client.close()
                    continue
                with self._guard:
                    self._open |= {client, server}
                self._begin(self._pump, client, server, "calls")
                self._begin(self._pump, server, client, "answers")

    def _connected(self) -> socket.socket | None:
        first = next(self._turns)
        for port in (*self._ports[first:], *self._ports[:first]):
            with contextlib.suppress(OSError):
                return socket.create_connection(("127.0.0.1", port), 1)
        return None

    def _pump(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        end(source, target)


@contextlib.contextmanager
def balancer(ports: Sequence[int]) -> Iterator[Balancer]:
    made = Balancer(ports)
    made.start()
    try:
        yield made
    finally:
        made.stop()

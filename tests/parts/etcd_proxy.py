"""A proxy before etcd that forwards bytes, and on request loses one: a call before it arrives, or its answer."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable, Iterator

from parts.forwarding import ForwardingProxy, end


class EtcdProxy(ForwardingProxy):
    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._loses = ""
        self._then: Callable[[], object] = lambda: None
        self.lost = 0
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def lose_call(self) -> None:
        """What the client sends next does not arrive, and its connection breaks."""
        self._loses = "calls"

    def lose_answer(self, then: Callable[[], object]) -> None:
        """What etcd sends next does not arrive. Once `then` has returned, the connection breaks."""
        self._then = then
        self._loses = "answers"

    def _pump(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._guard:
                    loses = self._loses == what
                    if loses:
                        self._loses = ""
                        self.lost += 1
                if loses:
                    if what == "answers":
                        self._then()
                    break
                target.sendall(data)
        end(source, target)


@contextlib.contextmanager
def proxy_before_etcd(target_port: int) -> Iterator[EtcdProxy]:
    proxy = EtcdProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

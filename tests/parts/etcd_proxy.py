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
        self._passing = 0
        self._then: Callable[[], object] = lambda: None
        self.lost = 0
        self.endpoint = f"http://127.0.0.1:{self.port}"

    def lose_call(self, after: int = 0) -> None:
        """What the client sends next, or after so many pieces, does not arrive, and its connection breaks."""
        self._passing = after
        self._loses = "calls"

    def lose_answer(self, then: Callable[[], object], after: int = 0) -> None:
        """What etcd sends next, or after so many pieces, does not arrive. Once `then` has returned, the connection
        breaks."""
        self._then = then
        self._passing = after
        self._loses = "answers"

    def lose_nothing(self) -> None:
        """What was asked for and has not happened yet does not happen any more."""
        with self._guard:
            self._loses = ""

    def _pump(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._guard:
                    loses = self._loses == what and self._passing == 0
                    if self._loses == what and not loses:
                        self._passing -= 1
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

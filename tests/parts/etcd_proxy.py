"""A proxy before etcd that forwards bytes, and on request loses one: a call before it arrives, or its answer."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator


class EtcdProxy:
    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []
        self._guard = threading.Lock()
        self._loses = ""
        self._then: Callable[[], object] = lambda: None
        self.lost = 0
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def lose_call(self) -> None:
        """What the client sends next does not arrive, and its connection breaks."""
        self._loses = "calls"

    def lose_answer(self, then: Callable[[], object]) -> None:
        """What etcd sends next does not arrive. Once `then` has returned, the connection breaks."""
        self._then = then
        self._loses = "answers"

    def start(self) -> None:
        self._begin(self._accept)

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._cut(*self._open)
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
                self._open += [client, server]
                self._begin(self._pump, client, server, "calls")
                self._begin(self._pump, server, client, "answers")

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
        self._cut(source, target)

    def _cut(self, *ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()


@contextlib.contextmanager
def proxy_before_etcd(target_port: int) -> Iterator[EtcdProxy]:
    proxy = EtcdProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

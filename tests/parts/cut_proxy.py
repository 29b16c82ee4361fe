"""A proxy that forwards bytes, and on request swallows them, or cuts all connections after so many more of them, in
either direction."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from parts.forwarding import ForwardingProxy, end


class CutProxy(ForwardingProxy):
    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._armed: tuple[str, int] | None = None
        self._swallows = ""
        self.swallowed = b""
        self.passed = {"calls": 0, "answers": 0}
        self.used: dict[str, int] = {}
        self.cuts = 0
        self.was_cut = threading.Event()
        self.address = f"grpc://127.0.0.1:{self.port}"

    def cut_after(self, what: str, count: int) -> None:
        """`what` is calls or answers. So many more of its bytes arrive, and then nothing on any connection."""
        with self._guard:
            self._armed = (what, count)
            self.was_cut.clear()

    def swallow(self, what: str) -> None:
        """From now on calls, or answers, go nowhere; connections stay."""
        with self._guard:
            self._swallows, self.swallowed = what, b""

    def refuse(self) -> None:
        """Cut all connections, and take none until `heal`."""
        with self._guard:
            self._refusing = True
            self._cut_all()

    def heal(self) -> None:
        with self._guard:
            self._refusing, self._swallows = False, ""

    def _pump(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                with self._guard:
                    if what == self._swallows:
                        self.swallowed += data
                        continue
                    data, cut = self._allowed(what, data)
                    if data:
                        target.sendall(data)
                    self.passed[what] += len(data)
                    if cut:
                        self._cut_all()
                        break
        end(source, target)

    def _allowed(self, what: str, data: bytes) -> tuple[bytes, bool]:
        if self._armed is None or self._armed[0] != what:
            return data, False
        left = self._armed[1] - len(data)
        if left > 0:
            self._armed = (what, left)
            return data, False
        count, self._armed = self._armed[1], None
        self.cuts += 1
        self.was_cut.set()
        return data[:count], True


@contextlib.contextmanager
def cut_proxy(target_port: int) -> Iterator[CutProxy]:
    proxy = CutProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

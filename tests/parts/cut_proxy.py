"""A proxy that forwards bytes, and on request cuts all connections after so many more of them, in either direction."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from parts.forwarding import ForwardingProxy, end


class CutProxy(ForwardingProxy):
    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self._armed: tuple[str, int] | None = None
        self.passed = {"calls": 0, "answers": 0}
        self.used: dict[str, int] = {}
        self.cuts = 0
        self.address = f"grpc://127.0.0.1:{self.port}"

    def cut_after(self, what: str, count: int) -> None:
        """`what` is calls or answers. So many more of its bytes arrive, and then nothing on any connection."""
        with self._guard:
            self._armed = (what, count)

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
        return data[:count], True


@contextlib.contextmanager
def cut_proxy(target_port: int) -> Iterator[CutProxy]:
    proxy = CutProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

"""A proxy before PostgreSQL that loses statements or their answers: connections cut, or silent for ever."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator

from parts.forwarding import ForwardingProxy, end
from parts.processes import pause

COMMIT = b"COMMIT\x00"
FAULTS = ("cut before", "cut after", "silent before", "silent after", "late")
"""What the next statement meets, and whether the server gets it. `late`: the client is cut at once, and the server
gets the statement a moment later."""
LATE_S = 0.5


class PostgresProxy(ForwardingProxy):
    """Knows a statement by `trigger` in the bytes of a call; psycopg2 sends one at a time."""

    def __init__(self, target_port: int) -> None:
        super().__init__(target_port)
        self.trigger = COMMIT
        self.faults: dict[int, str] = {}
        """By how many statements come before it, counted from `seen`."""
        self.seen = 0
        self.met = 0
        self._pending: dict[socket.socket, str] = {}

    def fail(self, trigger: bytes, faults: dict[int, str]) -> None:
        with self._guard:
            self.trigger, self.faults, self.seen, self.met = trigger, dict(faults), 0, 0

    def _fault_of(self, data: bytes) -> str:
        with self._guard:
            if self.trigger not in data:
                return ""
            self.seen += 1
            found = self.faults.pop(self.seen - 1, "")
            self.met += bool(found)
            return found

    def _pump(self, source: socket.socket, target: socket.socket, what: str) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if what == "answers":
                    fault = self._pending.get(target, "")
                    if fault == "cut after":
                        break
                    if not fault:
                        target.sendall(data)
                    continue
                fault = self._fault_of(data) or self._pending.get(source, "")
                if fault == "cut before":
                    break
                if fault == "late":
                    end(source)
                    pause(LATE_S)
                    target.sendall(data)
                    pause(LATE_S)  # its answer, and the end of the session, come after that
                    break
                if fault:
                    self._pending[source] = fault
                if fault != "silent before":
                    target.sendall(data)
        end(source, target)


@contextlib.contextmanager
def postgres_proxy(target_port: int) -> Iterator[PostgresProxy]:
    proxy = PostgresProxy(target_port)
    proxy.start()
    try:
        yield proxy
    finally:
        proxy.stop()

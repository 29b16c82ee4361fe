"""Bind an object to the process that created it. A forked child gets an error at once, before it takes a lock that is
never released or waits for a thread that does not exist.
"""

from __future__ import annotations

import os

from frazil.core.errors import UsedAfterFork

FORKED_FROM_GRPC = (
    "start children with multiprocessing's spawn, or fork before the first connection; connect in each of them"
)


class _Present:
    """The current pid, cached: asking the system took as long as all other checks of a message together."""

    pid = os.getpid()

    @classmethod
    def forked(cls) -> None:
        cls.pid = os.getpid()


os.register_at_fork(after_in_child=_Present.forked)


class OwnProcess:
    """The process that creates this object."""

    __slots__ = ("_advice", "_pid", "_what")

    def __init__(self, what: str, advice: str) -> None:
        self._what = what
        self._advice = advice
        self._pid = _Present.pid

    @property
    def is_here(self) -> bool:
        return _Present.pid == self._pid

    def check(self) -> None:
        if _Present.pid != self._pid:
            raise UsedAfterFork(self._what, self._pid, _Present.pid, self._advice)


class _Grpc:
    first_process: OwnProcess | None = None


def check_grpc() -> None:
    """Check before each new connection. A child forked after the first one has gRPC's locks without its threads."""
    first = _Grpc.first_process = _Grpc.first_process or OwnProcess("gRPC", FORKED_FROM_GRPC)
    first.check()

"""Which of several movers moves: the owner of the folder lends the lead for a time.

The lease saves work, nothing else: two that move at once are told apart by the pinned commit of each table. So it
may live in the owner's memory. An owner that was started again lends it to the first that asks.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from frazil.core.clock import Clock
from frazil.core.errors import AnotherLeads, NobodyLeads


@dataclass(frozen=True, slots=True)
class MoverName:
    """One life of a mover. The id tells two lives apart; host and pid are for people."""

    id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Lead:
    """The answer to a mover that asked: who leads, and for how long unless it asks again."""

    leader: MoverName
    left_ms: int


class Leases:
    """The owner's side. Time is monotonic: a wall clock that is set does not end or stretch a lease."""

    def __init__(self, clock: Clock, is_gone: Callable[[MoverName], bool] | None = None) -> None:
        self._clock = clock
        self._is_gone = is_gone or process_is_gone
        self._guard = threading.Lock()
        self._leader: MoverName | None = None
        self._until_us = 0

    def ask(self, mover: MoverName, lease_ms: int) -> Lead:
        """The lead, if it is free or the mover's own already; from now on for `lease_ms`."""
        with self._guard:
            leader = self._now()
            if leader is None or leader.id == mover.id:
                self._leader = leader = mover
                self._until_us = self._clock.monotonic_us() + lease_ms * 1_000
            return Lead(leader, max(0, self._until_us - self._clock.monotonic_us()) // 1_000)

    def give_up(self, mover_id: str) -> None:
        """At a clean stop, so that the next need not wait. Whoever does not lead gives up nothing."""
        with self._guard:
            if self._leader is not None and self._leader.id == mover_id:
                self._leader = None

    def leader(self) -> MoverName | None:
        with self._guard:
            return self._now()

    def check(self, mover_id: str) -> None:
        """`AnotherLeads` if another does, `NobodyLeads` if nobody does: only who has the lead is heard."""
        leader = self.leader()
        if leader is None:
            raise NobodyLeads
        if leader.id != mover_id:
            raise AnotherLeads(leader.host, leader.pid)

    def _now(self) -> MoverName | None:
        if self._leader is None or self._clock.monotonic_us() >= self._until_us or self._is_gone(self._leader):
            self._leader = None
        return self._leader


def process_is_gone(mover: MoverName) -> bool:
    """Only the processes of this host can be asked; the others have their time."""
    return mover.host == this_host() and not lives(mover.pid)


def this_host() -> str:
    return socket.gethostname()


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

"""The mover lease: the owner of the folder grants the lead to one of several movers.

The lease only saves work: if two movers run at once, the pinned commit of each table refuses one of them. So it may
live in the owner's memory. A restarted owner grants it to the first mover that asks.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from frazil.core.clock import Clock
from frazil.core.errors import AnotherLeads, NobodyLeads
from frazil.core.process.identity import lives


@dataclass(frozen=True, slots=True)
class MoverName:
    """One run of a mover. The id distinguishes runs; host and pid are for people."""

    id: str
    host: str
    pid: int


@dataclass(frozen=True, slots=True)
class Lead:
    """The answer to a mover: who leads, and for how long unless it asks again."""

    leader: MoverName
    left_ms: int


class Leases:
    """The owner's side. Time is monotonic: setting the wall clock neither ends nor extends a lease."""

    def __init__(self, clock: Clock, is_gone: Callable[[MoverName], bool] | None = None) -> None:
        self._clock = clock
        self._is_gone = is_gone or process_is_gone
        self._guard = threading.Lock()
        self._leader: MoverName | None = None
        self._until_us = 0

    def ask(self, mover: MoverName, lease_ms: int) -> Lead:
        """Grant the lead for `lease_ms` if it is free or already the mover's own."""
        with self._guard:
            leader = self._now()
            if leader is None or leader.id == mover.id:
                self._leader = leader = mover
                self._until_us = self._clock.monotonic_us() + lease_ms * 1_000
            return Lead(leader, max(0, self._until_us - self._clock.monotonic_us()) // 1_000)

    def give_up(self, mover_id: str) -> None:
        """Release the lead at a clean stop, so that the next mover need not wait. Has no effect for other movers."""
        with self._guard:
            if self._leader is not None and self._leader.id == mover_id:
                self._leader = None

    def leader(self) -> MoverName | None:
        with self._guard:
            return self._now()

    def check(self, mover_id: str) -> None:
        """Raise `AnotherLeads` or `NobodyLeads` unless this mover leads: only the leader's reports count."""
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
    """Only processes of this host can be checked; for others the lease must expire."""
    return mover.host == this_host() and not lives(mover.pid)


def this_host() -> str:
    return socket.gethostname()

"""The mover's side of the lease: acquire the lead, and renew it in the background during long jobs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Protocol

from frazil.core.clock import Clock
from frazil.core.errors import AnotherLeads, FrazilError, PermissionDenied, Unauthenticated
from frazil.node.movers.lease import Lead, MoverName

ASKS_IN_A_LEASE = 3

_log = logging.getLogger("frazil.pipeline")


class Lender(Protocol):
    """The owner of the folder, as a mover reaches it."""

    def ask_to_lead(self, mover: MoverName, lease_ms: int) -> Lead: ...

    def give_up(self, mover: MoverName) -> None: ...


class Leadership:
    """Renews from its own thread; `leads` combines the last answer with the clock.

    A mover that was paused for longer than the lease knows on resuming that it no longer leads, before any answer.
    """

    def __init__(
        self, lender: Lender, mover: MoverName, lease_ms: int, clock: Clock, on_kept: Callable[[], None] = lambda: None
    ) -> None:
        self._lender = lender
        self._mover = mover
        self._lease_ms = lease_ms
        self._clock = clock
        self._on_kept = on_kept
        self._until_us: int | None = None
        self._leader: MoverName | None = None
        self._is_refused = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="frazil-lease", daemon=True)

    @property
    def leads(self) -> bool:
        return self._until_us is not None and self._clock.monotonic_us() < self._until_us

    @property
    def leader(self) -> MoverName | None:
        """The other mover that the owner last named."""
        return self._leader

    def ask(self) -> None:
        """Ask once; an owner that does not answer is an error, and changes nothing."""
        asked_us = self._clock.monotonic_us()
        lead = self._lender.ask_to_lead(self._mover, self._lease_ms)
        if lead.leader.id == self._mover.id:
            self._until_us, self._leader = asked_us + self._lease_ms * 1_000, None
        else:
            self._until_us, self._leader = None, lead.leader

    def must_lead(self) -> None:
        """For a single run: raises `AnotherLeads` where a permanent mover would stand by."""
        self.ask()
        if self._leader is not None:
            raise AnotherLeads(self._leader.host, self._leader.pid)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Release the lead, so that the next mover takes over at once."""
        self._stop.set()
        if self._thread.ident is not None:
            self._thread.join()
        if self._until_us is None:
            return
        try:
            self._lender.give_up(self._mover)
        except FrazilError as error:
            _log.info("the lead will expire: %s", error)

    def _keep(self) -> None:
        while not self._stop.wait(self._lease_ms / 1_000 / ASKS_IN_A_LEASE):
            try:
                self.ask()
            except (Unauthenticated, PermissionDenied) as error:  # a key was revoked: only a person can help
                if not self._is_refused:
                    _log.error("the owner refuses this mover, which stands by: %s", error)
                self._is_refused = True
                continue
            except FrazilError as error:
                _log.debug("the owner does not answer who leads: %s", error)
                continue
            self._is_refused = False
            if self.leads:
                self._on_kept()

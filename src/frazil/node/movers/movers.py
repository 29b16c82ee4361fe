"""The owner's services for movers: grant the lease, and keep the leader's reports."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from frazil.core.clock import Clock
from frazil.core.disk import LocalDisk
from frazil.core.settings import Settings
from frazil.node.movers.last_report import LastReport
from frazil.node.movers.lease import Lead, Leases, MoverName
from frazil.node.retention.moved import mark_moved

OnReport = Callable[[dict[str, Any]], None]


class MoverChild(Protocol):
    """The mover that this process has started."""

    @property
    def up(self) -> bool: ...


class Movers:
    """Thread-safe. Reports are for people and metrics: retention asks the catalog itself."""

    def __init__(
        self, settings: Settings, clock: Clock, on_report: OnReport | None = None, status: LastReport | None = None
    ) -> None:
        """`on_report` is called with each report of the leader; `status` keeps the last one."""
        self._settings = settings
        self._clock = clock
        self._on_report = on_report
        self._leases = Leases(clock)
        self.status = status or LastReport(settings)
        self.child: MoverChild | None = None
        """None if this process has started no mover."""
        self.missing: str | None = None
        """Why a configured mover could not be started."""

    def lead(self, mover: MoverName, lease_ms: int) -> Lead:
        """Grant or refuse the lead. From now on, and after a restart, retention keeps rows until they are in tables."""
        mark_moved(self._settings, LocalDisk(), None)
        return self._leases.ask(mover, lease_ms)

    def give_up(self, mover_id: str) -> None:
        self._leases.give_up(mover_id)

    def report(self, mover: MoverName, value: dict[str, Any]) -> None:
        """Store the leader's status and the progress of each table; raises `AnotherLeads` for other movers."""
        self._leases.check(mover.id)
        self.status.keep(self._clock, mover.host, mover.pid, value)
        if self._on_report is not None:
            self._on_report(value)

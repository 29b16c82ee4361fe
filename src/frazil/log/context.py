"""What all topics of one storage share: parts are arguments, settings are values."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from frazil.core.clock import Clock
from frazil.core.disk import Disk
from frazil.core.own_process import OwnProcess
from frazil.core.settings import WalSettings
from frazil.log.budget import DiskBudget
from frazil.log.cache import ReplayCache
from frazil.log.keeper import Keeper
from frazil.log.metrics import LogMetrics
from frazil.log.pool import CommitPool


class Parkable(Protocol):
    def try_park(self) -> bool:
        """Close the file that is open for writing, unless it is in use; False says it is still open."""
        ...


class OpenFiles:
    """At most `limit` segments are open for writing: the one unused for longest is parked."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._guard = threading.Lock()
        self._open: OrderedDict[Parkable, None] = OrderedDict()

    def used(self, log: Parkable) -> None:
        """Called by the log that holds its own lock; others are only tried, so no two can wait for each other."""
        with self._guard:
            self._open[log] = None
            self._open.move_to_end(log)
            excess = len(self._open) - self._limit
            if excess <= 0:
                return
            oldest = [other for other, _ in zip(self._open, range(excess + 8), strict=False) if other is not log]
        for other in oldest:
            if excess > 0 and other.try_park():
                excess -= 1
                self.closed(other)

    def closed(self, log: Parkable) -> None:
        with self._guard:
            self._open.pop(log, None)


@dataclass(frozen=True, slots=True)
class LogContext:
    settings: WalSettings
    disk: Disk
    clock: Clock
    budget: DiskBudget
    cache: ReplayCache
    pool: CommitPool
    keeper: Keeper
    open_files: OpenFiles
    metrics: LogMetrics
    process: OwnProcess

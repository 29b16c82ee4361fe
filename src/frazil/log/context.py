"""The parts shared by all topics of a storage, passed as arguments."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Protocol

from frazil.core.clock import Clock
from frazil.core.disk import Disk
from frazil.core.process.own_process import OwnProcess
from frazil.core.settings import WalSettings
from frazil.log.metrics import LogMetrics
from frazil.log.read.cache import ReplayCache
from frazil.log.timer import Timer
from frazil.log.write.commit_pool import CommitPool
from frazil.log.write.disk_budget import DiskBudget


class Parkable(Protocol):
    def try_park(self) -> bool:
        """Close the file that is open for writing, unless it is in use; returns False if it is still open."""
        ...


class OpenFiles:
    """At most `limit` segments are open for writing: the least recently used one is parked."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._guard = threading.Lock()
        self._open: OrderedDict[Parkable, None] = OrderedDict()

    def used(self, log: Parkable) -> None:
        """Called by a log that holds its own lock; other locks are only tried, so there is no deadlock."""
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
    keeper: Timer
    open_files: OpenFiles
    metrics: LogMetrics
    process: OwnProcess

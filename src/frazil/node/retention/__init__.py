"""Guards that must agree before retention removes rows, the same in every process that owns a data folder."""

from __future__ import annotations

from frazil.core.disk import Disk
from frazil.core.settings import Settings
from frazil.log.retention.guards import Guard
from frazil.node.retention.subscriptions import SubscriptionGuard
from frazil.node.retention.table import TableGuard

__all__ = ["SubscriptionGuard", "TableGuard", "guards_of"]


def guards_of(settings: Settings, disk: Disk, *, moves: bool) -> list[Guard]:
    """`moves` is for a process that has a mover, or should have one. A log in memory has nothing to guard."""
    if settings.data is None:
        return []
    return [TableGuard(settings, disk, moves=moves), SubscriptionGuard(settings)]

"""The disk budget of a data folder: refuse before the disk is full."""

from __future__ import annotations

import threading

from frazil.core.errors import DiskBudgetExceeded


class DiskBudget:
    def __init__(self, limit_bytes: int | None) -> None:
        self._guard = threading.Lock()
        self._used_bytes = 0
        self.limit_bytes = limit_bytes

    @property
    def used_bytes(self) -> int:
        return self._used_bytes

    def found(self, count: int) -> None:
        """Count bytes already on the disk, regardless of the limit."""
        with self._guard:
            self._used_bytes += count

    def try_take(self, count: int) -> bool:
        with self._guard:
            if self.limit_bytes is not None and self._used_bytes + count > self.limit_bytes:
                return False
            self._used_bytes += count
            return True

    def take(self, count: int) -> None:
        if not self.try_take(count):
            assert self.limit_bytes is not None
            raise DiskBudgetExceeded(self._used_bytes, count, self.limit_bytes)

    def give_back(self, count: int) -> None:
        with self._guard:
            self._used_bytes -= count

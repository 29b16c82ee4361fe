"""A little room held back, so that a full disk can be emptied.

To remove a segment safely the log first records where it now begins, and that takes a block or two. On a disk
without a free byte retention would otherwise wait for room that only retention can make.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from frazil.core.disk import Disk
from frazil.core.settings import KIB

SPARE_BYTES = 64 * KIB


class SpareRoom:
    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._held = any(entry.name == path.name for entry in disk.list(path.parent))
        self.keep()

    def keep(self) -> None:
        """Hold the room, or hold it again once there is some; without any the log works all the same."""
        if self._held:
            return
        with contextlib.suppress(OSError):
            file = self._disk.open(self._path, "create")
            try:
                file.allocate(0, SPARE_BYTES)
                self._held = True
            finally:
                file.close()
                if not self._held:
                    self._disk.remove(self._path)

    def give_up(self) -> bool:
        """Let go of the room; False if there was none."""
        if not self._held:
            return False
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(self._path)
        self._held = False
        return True

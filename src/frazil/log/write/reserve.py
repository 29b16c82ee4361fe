"""A small reserve of disk space, so that retention can run on a full disk.

To remove a segment safely, the log first records its new beginning, which takes a block or two. On a completely full
disk, retention would otherwise wait for space that only retention can free.
"""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path

from frazil.core.disk import NO_ROOM, Disk
from frazil.core.settings import KIB

_log = logging.getLogger("frazil.log")

SPARE_BYTES = 64 * KIB
_SPARE_BYTES_MIN = 4 * KIB
"""One block: enough for one record, if there is no space for more."""


class SpaceReserve:
    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._held_bytes = sum(entry.size_bytes for entry in disk.list(path.parent) if entry.name == path.name)
        self.keep()

    def keep(self) -> None:
        """Reserve the space, or as much as there is; without any the log still works."""
        if self._held_bytes >= SPARE_BYTES:
            return
        try:
            self._grow()
        except OSError as error:
            if error.errno not in NO_ROOM:
                _log.warning("no spare room is held for a full disk, and is retried: %s", error)

    def _grow(self) -> None:
        try:
            file = self._disk.open(self._path, "write")
        except FileNotFoundError:
            file = self._disk.open(self._path, "create")
        try:
            wanted_bytes = SPARE_BYTES
            while self._held_bytes < wanted_bytes:
                try:
                    file.allocate(self._held_bytes, wanted_bytes - self._held_bytes)
                    self._held_bytes = wanted_bytes
                except OSError:
                    file.truncate(self._held_bytes)
                    wanted_bytes //= 2
                    if wanted_bytes < _SPARE_BYTES_MIN:
                        raise
        finally:
            file.close()

    def give_up(self) -> bool:
        """Release the space; False if there was none."""
        if not self._held_bytes:
            return False
        with contextlib.suppress(FileNotFoundError):
            self._disk.remove(self._path)
        self._held_bytes = 0
        return True

"""Which folder is meant by a path that another process told: that of its owner, and not a copy of it under that name.

A copy has the same log ids at the same paths, on another host or in another container, and other rows since. Within one
running system device and inode tell folders apart; the boot id names the system.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class FolderMark:
    path: Path
    mark: str

    def is_here(self) -> bool:
        """Whether the path is the same folder for this process. One that is mounted from another host is not."""
        found = mark_of(self.path)
        return found is not None and found.mark == self.mark


def mark_of(folder: Path) -> FolderMark | None:
    """None if it is not on a disk, or the system has no boot id."""
    boot_id = _boot_id()
    if not boot_id:
        return None
    try:
        status = folder.stat()
    except OSError:
        return None
    return FolderMark(folder.absolute(), f"{boot_id}:{status.st_dev}:{status.st_ino}")


@functools.cache
def _boot_id() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        return ""

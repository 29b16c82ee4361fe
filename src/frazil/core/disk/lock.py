"""The file lock by which a process owns a folder, and the check that such locks work on that file system."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import threading
from pathlib import Path

from frazil.core.errors.process import FolderInUse, LocksNotSupported

ATTEMPTS_MAX, PAUSE_SECONDS = 500, 0.01
MOUNTS = Path("/proc/self/mountinfo")

_LOCAL_LOCKS = frozenset({"nolock", "local_lock=flock", "local_lock=all", "localflock", "localflocks"})
"""Mount options of NFS, Lustre, GFS2 and OCFS2."""
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL)


def take_lock(fd: int, path: Path) -> None:
    """Take the lock. Raises `FolderInUse` with the owner's pid, or `LocksNotSupported` if two processes could hold it.

    Some network and user-space file systems grant every lock. Therefore the lock is requested again through a second
    descriptor, which must be refused: `flock` distinguishes descriptors, not processes.
    """
    option = _local_lock_option(path)
    if option is not None:
        raise LocksNotSupported(str(path.parent), option)
    if not _takes_in_turn(fd, path):
        pid = os.pread(fd, 32, 0).strip()
        raise FolderInUse(str(path.parent), int(pid) if pid.isdigit() else None)
    second = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        if _takes(second, path):
            raise LocksNotSupported(str(path.parent))
    finally:
        os.close(second)


def local_lock_option(mounts: str, folder: str) -> str | None:
    """Return the mount option that keeps locks local to this host, given the text of `/proc/self/mountinfo`."""
    found: tuple[str, list[str]] = "", []
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        place, kind = before.split(" "), after.split(" ")
        if len(place) < 5 or len(kind) < 3:
            continue
        at = _unescaped(place[4])
        if os.path.commonpath([at, folder]) == at and len(at) >= len(found[0]):  # a later mount covers an earlier one
            found = at, kind[2].split(",")
    return next((option for option in found[1] if option in _LOCAL_LOCKS), None)


def _local_lock_option(path: Path) -> str | None:
    try:
        mounts = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:  # this system has no mountinfo
        return None
    return local_lock_option(mounts, os.path.realpath(path))


def _unescaped(text: str) -> str:
    """Decode the octal escapes of blanks and similar characters."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), text)


def _takes_in_turn(fd: int, path: Path) -> bool:
    """Retry while a process that looks up the owner briefly holds a shared lock."""
    for _ in range(ATTEMPTS_MAX):
        if _takes(fd, path):
            return True
        if not _takes(fd, path, fcntl.LOCK_SH):  # another process holds it exclusively
            return False
        fcntl.flock(fd, fcntl.LOCK_UN)
        threading.Event().wait(PAUSE_SECONDS)
    return False


def _takes(fd: int, path: Path, how: int = fcntl.LOCK_EX) -> bool:
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            raise LocksNotSupported(str(path.parent)) from error
        raise
    return True

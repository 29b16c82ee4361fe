"""Ownership of a data folder. One process at a time writes to it; any process may query the owner, and read."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from frazil.core.disk import Disk, FolderLock
from frazil.core.disk.json_file import read_json, remove_json, write_json
from frazil.core.settings import Settings

OWNER_FILE = "~owner"
SERVE_FILE = "~serve"


def folders_to_own(settings: Settings) -> list[Path]:
    """Return the data folder, and the segment folder if the settings put it elsewhere."""
    data = settings.data or settings.log_folder
    return sorted({data, settings.wal.folder or data})


def take_ownership(disk: Disk, settings: Settings) -> list[FolderLock]:
    """Own the folders, creating them if they do not exist, or own none and raise `FolderInUse`."""
    locks: list[FolderLock] = []
    try:
        for folder in folders_to_own(settings):
            disk.make_folder(folder)
            locks.append(disk.lock(folder / OWNER_FILE))
    except BaseException:
        release_ownership(locks)
        raise
    return locks


def release_ownership(locks: list[FolderLock]) -> None:
    for lock in locks:
        lock.release()


@contextlib.contextmanager
def owned(disk: Disk, settings: Settings) -> Iterator[None]:
    """Own the folder as a storage does, for work on its files."""
    locks = take_ownership(disk, settings)
    try:
        yield
    finally:
        release_ownership(locks)


def owner_of(settings: Settings) -> int | None:
    """Return the pid of the current owner; None if there is none. Does not take the lock.

    An owner that ends cleanly empties its file. A pid in it is an owner, or was left by a crash: only then the lock is
    tried, so that a query cannot disturb an owner that starts.
    """
    for folder in folders_to_own(settings):
        pid = _locked_by(folder / OWNER_FILE)
        if pid is not None:
            return pid
    return None


@contextlib.contextmanager
def published_addresses(settings: Settings, addresses: Mapping[str, Any]) -> Iterator[None]:
    """Publish, within this context, where the owner of the folder (this process) listens."""
    assert settings.data is not None
    path = settings.data / SERVE_FILE
    write_json(path, {"pid": os.getpid(), **addresses})
    try:
        yield
    finally:
        remove_json(path)


def served_by(settings: Settings) -> dict[str, Any] | None:
    """Return where the owner listens: `pid`, `http`, `flight`; None if the folder has no owner, or it serves nothing.

    A stale file of a crashed process is ignored. Raises `NewerFormat` if the owner is a newer version whose file
    cannot be read.
    """
    path = None if settings.data is None else settings.data / SERVE_FILE
    owner = owner_of(settings) if path is not None and path.exists() else None
    if path is None or owner is None:
        return None
    served = read_json(path, refuse_newer=True)
    return served if served is not None and served.get("pid") == owner else None


def _locked_by(path: Path) -> int | None:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        pid = os.pread(fd, 32, 0).strip()
        if not pid.isdigit():
            return None
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return int(pid)
    else:
        return None
    finally:
        os.close(fd)

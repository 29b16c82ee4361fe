"""Who owns a data folder. One process at a time writes to it; anyone may ask, and read."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from frazil.core.disk import Disk, FolderLock
from frazil.core.json_file import read_json, remove_json, write_json
from frazil.core.settings import Settings

OWNER_FILE = "~owner"
SERVE_FILE = "~serve"


def folders_to_own(settings: Settings) -> list[Path]:
    """The data folder, and the folder of the segments where the settings put it elsewhere."""
    data = settings.data or settings.log_folder
    return sorted({data, settings.wal.folder or data})


def take_ownership(disk: Disk, settings: Settings) -> list[FolderLock]:
    """Own the folders, made if they are not there, or take none and raise `FolderInUse`."""
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
    """The pid of the process that owns the folder now; None if there is none. Takes nothing for itself.

    An owner that ends cleanly empties its file. A pid in it is an owner, or was left by a crash: the lock tells,
    and it is tried only then, so that asking cannot get in the way of an owner that starts.
    """
    for folder in folders_to_own(settings):
        pid = _locked_by(folder / OWNER_FILE)
        if pid is not None:
            return pid
    return None


@contextlib.contextmanager
def told_where(settings: Settings, addresses: dict[str, str]) -> Iterator[None]:
    """Tell, while it lasts, where the owner of the folder (this process) listens."""
    assert settings.data is not None
    path = settings.data / SERVE_FILE
    write_json(path, {"pid": os.getpid(), **addresses})
    try:
        yield
    finally:
        remove_json(path)


def served_by(settings: Settings) -> dict[str, Any] | None:
    """Where the owner listens: `pid`, `http`, `flight`; None if nobody owns the folder, or its owner serves nothing.

    A file left by a crash names a process that no longer owns the folder, and is not believed.
    """
    if settings.data is None:
        return None
    told = read_json(settings.data / SERVE_FILE)
    return told if told is not None and told.get("pid") == owner_of(settings) else None


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

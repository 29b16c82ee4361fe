"""A faulty disk whose content is also in real files, so that readers of files see it as other processes would.

The log writes through it. Tasks, SQL, `verify` and read-only views open the real files, which always show what the
system's cache would. After a power cut the real files are what survived.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

from typing_extensions import Buffer

from frazil.core.disk import File, FolderEntry, FolderLock
from frazil.testing import FaultyDisk, PowerCut


class MirroredDisk:
    """A `frazil.core.disk.Disk`. `faults` decides what fails; the folder at `root` shows the result."""

    def __init__(self, root: Path, faults: FaultyDisk) -> None:
        self.root = root
        self.faults = faults

    def crash(self, rng: random.Random) -> MirroredDisk:
        """The disk after a power cut: what was never synced may be gone."""
        after = self.faults.crash(rng)
        for path, is_folder in reversed(list(_walk(self.faults.kill(), self.root))):
            with contextlib.suppress(FileNotFoundError):
                if is_folder:
                    _remove_if_empty(path)
                else:
                    path.unlink()
        for path, is_folder in _walk(after, self.root):
            if is_folder:
                path.mkdir(parents=True, exist_ok=True)
            else:
                file = after.open(path, "read")
                path.write_bytes(file.read(file.size(), 0))
        return MirroredDisk(self.root, after)

    def kill(self) -> MirroredDisk:
        """The disk after SIGKILL: all that was written is there."""
        return MirroredDisk(self.root, self.faults.kill())

    # --- Disk

    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> File:
        file = self.faults.open(path, mode)
        flags = os.O_RDWR | (os.O_CREAT if mode == "create" else 0)
        return _MirroredFile(file, os.open(path, flags))

    def list(self, folder: Path) -> list[FolderEntry]:
        return self.faults.list(folder)

    def make_folder(self, folder: Path) -> None:
        try:
            self.faults.make_folder(folder)
        finally:
            if self.faults._find(folder) is not None:
                folder.mkdir(parents=True, exist_ok=True)

    def sync_folder(self, folder: Path) -> None:
        self.faults.sync_folder(folder)

    def rename(self, source: Path, target: Path) -> None:
        self.faults.rename(source, target)
        if source.is_dir() and target.is_dir():
            shutil.rmtree(target)
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        self.faults.remove(path)
        path.unlink()

    def remove_folder(self, folder: Path) -> None:
        self.faults.remove_folder(folder)
        _remove_if_empty(folder)

    def lock(self, path: Path) -> FolderLock:
        return self.faults.lock(path)


class _MirroredFile:
    """The descriptor follows the file through renames and removals, as it does for a process."""

    def __init__(self, file: File, descriptor: int) -> None:
        self._file = file
        self._descriptor = descriptor

    def write(self, pieces: Sequence[Buffer], position: int) -> None:
        size = sum(memoryview(piece).nbytes for piece in pieces)
        try:
            self._file.write(pieces, position)
        except OSError:
            self._show(position, size)
            raise
        self._show(position, size)

    def read(self, length: int, position: int) -> bytes:
        return self._file.read(length, position)

    def allocate(self, position: int, length: int) -> None:
        try:
            self._file.allocate(position, length)
        finally:
            os.ftruncate(self._descriptor, self._file.size())

    def truncate(self, size: int) -> None:
        self._file.truncate(size)
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        self._file.sync()

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def _show(self, position: int, size: int) -> None:
        os.ftruncate(self._descriptor, self._file.size())
        os.pwrite(self._descriptor, self._file.read(size, position), position)


def _walk(disk: FaultyDisk, folder: Path) -> Iterator[tuple[Path, bool]]:
    """Every entry below a folder, folders before what is in them."""
    try:
        entries = disk.list(folder)
    except FileNotFoundError:
        return
    for entry in entries:
        path = folder / entry.name
        yield path, entry.is_folder
        if entry.is_folder:
            yield from _walk(disk, path)


def _remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()


def ignore_power_cuts() -> Callable[[], None]:
    """Threads of the log that die with the machine say nothing; returns what undoes it."""
    before = threading.excepthook

    def hook(args: Any) -> None:
        if not isinstance(args.exc_value, PowerCut):
            before(args)

    threading.excepthook = hook

    def undo() -> None:
        threading.excepthook = before

    return undo

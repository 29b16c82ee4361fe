"""A disk in RAM, used by `frazil.open(None)`. Nothing outlives the process."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from typing_extensions import Buffer

from frazil.core.disk import File, FolderEntry, FolderLock


class MemoryDisk:
    """Files as byte arrays. Written data is as durable as the process."""

    def __init__(self) -> None:
        self._guard = threading.RLock()
        self._files: dict[Path, bytearray] = {}
        self._folders: set[Path] = {Path("/")}

    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> File:
        with self._guard:
            if mode == "create":
                if path in self._files:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
                if path.parent not in self._folders:
                    raise _not_found(path.parent)
                self._files[path] = bytearray()
            if path not in self._files:
                raise _not_found(path)
            return _MemoryFile(self._files[path], self._guard)

    def list(self, folder: Path) -> list[FolderEntry]:
        with self._guard:
            if folder not in self._folders:
                raise _not_found(folder)
            files = [
                FolderEntry(path.name, False, len(data)) for path, data in self._files.items() if path.parent == folder
            ]
            folders = [
                FolderEntry(path.name, True, 0) for path in self._folders if path.parent == folder and path != folder
            ]
            return files + folders

    def make_folder(self, folder: Path) -> None:
        with self._guard:
            self._folders.update([folder, *folder.parents])

    def sync_folder(self, folder: Path) -> None:
        with self._guard:
            if folder not in self._folders:
                raise _not_found(folder)

    def rename(self, source: Path, target: Path) -> None:
        with self._guard:
            if source in self._files:
                self._files[target] = self._files.pop(source)
                return
            if source not in self._folders:
                raise _not_found(source)

            def moved(path: Path) -> Path:
                return target / path.relative_to(source) if path.is_relative_to(source) else path

            self._folders = {moved(path) for path in self._folders}
            self._files = {moved(path): data for path, data in self._files.items()}

    def remove(self, path: Path) -> None:
        with self._guard:
            if self._files.pop(path, None) is None:
                raise _not_found(path)

    def remove_folder(self, folder: Path) -> None:
        with self._guard:
            if folder not in self._folders:
                raise _not_found(folder)
            if self.list(folder):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), str(folder))
            self._folders.remove(folder)

    def lock(self, path: Path) -> FolderLock:  # noqa: ARG002 - no other process can see it
        return _NoLock()


class _NoLock:
    def release(self) -> None:
        """Do nothing: no other process can see this disk."""


class _MemoryFile:
    def __init__(self, data: bytearray, guard: threading.RLock) -> None:
        self._data = data
        self._guard = guard

    def write(self, pieces: Sequence[Buffer], position: int) -> None:
        with self._guard:
            for piece in pieces:
                view = memoryview(piece).cast("B")
                self.allocate(position, len(view))
                self._data[position : position + len(view)] = view
                position += len(view)

    def read(self, length: int, position: int) -> bytes:
        with self._guard:
            return bytes(self._data[position : position + length])

    def allocate(self, position: int, length: int) -> None:
        with self._guard:
            missing = position + length - len(self._data)
            if missing > 0:
                self._data.extend(bytes(missing))

    def truncate(self, size: int) -> None:
        with self._guard:
            del self._data[size:]
            self.allocate(0, size)

    def sync(self) -> None:
        """Do nothing: RAM has no durable state."""

    def size(self) -> int:
        return len(self._data)

    def close(self) -> None:
        """Do nothing: there is no descriptor to release."""


def _not_found(path: Path) -> FileNotFoundError:
    return FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))

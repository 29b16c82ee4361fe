"""A disk that refuses every change: operations that succeed on it may run in a thread that can be interrupted."""

from __future__ import annotations

import builtins
from pathlib import Path
from typing import Literal, NoReturn

from frazil.core.disk import Disk, File, FolderEntry


class NotAtOnce(Exception):
    """Something would have to be changed or synced, or a file is so large that it should be read only once."""


def _refuse(*_: object, **__: object) -> NoReturn:
    raise NotAtOnce


class ReadingDisk:
    """A read-only `Disk`. A file is opened for writing if requested, so that missing permissions are detected."""

    make_folder = sync_folder = rename = remove = remove_folder = lock = _refuse

    def __init__(self, disk: Disk, file_bytes_max: int) -> None:
        self._disk = disk
        self._file_bytes_max = file_bytes_max

    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> File:
        if mode == "create":
            raise NotAtOnce
        file = self._disk.open(path, mode)
        if mode == "write" and file.size() > self._file_bytes_max:
            file.close()
            raise NotAtOnce
        return _ReadingFile(file)

    def list(self, folder: Path) -> builtins.list[FolderEntry]:
        return self._disk.list(folder)


class _ReadingFile:
    __slots__ = ("close", "read", "size")

    write = allocate = truncate = sync = _refuse

    def __init__(self, file: File) -> None:
        self.read, self.size, self.close = file.read, file.size, file.close

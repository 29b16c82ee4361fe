"""The disk interface: every system call that touches the log goes through this module.

`Disk` and `File` are small enough to reimplement: `LocalDisk` is the real one, `MemoryDisk` (`frazil.core.disk.memory`)
keeps everything in RAM, and `frazil.testing.FaultyDisk` loses data that was never synced. Only this module may sync a
file.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from typing_extensions import Buffer

from frazil.core.disk.lock import take_lock
from frazil.core.disk.modes import FILE_MODE, FOLDER_MODE

NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Write errors that mean "full", which is temporary, rather than "broken", which is not."""

NO_RESOURCES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EAGAIN, errno.EINTR})
"""Errors that mean "not now": the process or the system is short of descriptors or memory; the disk has not failed."""

_VECTORS_MAX = 512
_DESCRIPTORS_HELD = 8


@dataclass(frozen=True, slots=True)
class FolderEntry:
    name: str
    is_folder: bool
    size_bytes: int


class File(Protocol):
    def write(self, pieces: Sequence[Buffer], position: int) -> None:
        """Write all pieces, one after another, from `position` on; an error may leave a part written."""
        ...

    def read(self, length: int, position: int) -> bytes:
        """Read up to `length` bytes; returns fewer only at the end of the file."""
        ...

    def allocate(self, position: int, length: int) -> None:
        """Preallocate zeroed space, so that later writes need no new blocks."""
        ...

    def truncate(self, size: int) -> None: ...

    def sync(self) -> None:
        """Return only after all written data is on the device."""
        ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Disk(Protocol):
    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> File:
        """Open a file. `create` fails if the file exists; `write` and `read` fail if it does not."""
        ...

    def list(self, folder: Path) -> list[FolderEntry]:
        """List a folder in no particular order; a missing folder raises FileNotFoundError."""
        ...

    def make_folder(self, folder: Path) -> None:
        """Create a folder and its parents durably; an existing folder is fine."""
        ...

    def sync_folder(self, folder: Path) -> None:
        """Make the directory entries durable after files were created, renamed or removed."""
        ...

    def rename(self, source: Path, target: Path) -> None: ...

    def remove(self, path: Path) -> None: ...

    def remove_folder(self, folder: Path) -> None: ...

    def lock(self, path: Path) -> FolderLock:
        """Take ownership of a folder through a lock file, or raise `FolderInUse` with the owner's pid."""
        ...


class FolderLock(Protocol):
    def release(self) -> None: ...


class LocalDisk:
    """The real disk, through plain system calls.

    The owner of a folder holds a few descriptors in reserve. When the process runs out, it releases them for files that
    are written, so that connections and readers cannot keep a log from creating its next segment.
    """

    def __init__(self) -> None:
        self._reserve = _DescriptorReserve()

    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> File:
        flags = {
            "read": os.O_RDONLY,
            "write": os.O_RDWR,
            "create": os.O_RDWR | os.O_CREAT | os.O_EXCL,
        }[mode]
        if mode == "read":
            return _LocalFile(os.open(path, flags | os.O_CLOEXEC, FILE_MODE))
        return _LocalFile(self._reserve.open(path, flags, FILE_MODE))

    def list(self, folder: Path) -> list[FolderEntry]:
        entries = []
        with os.scandir(folder) as found:
            for item in found:
                try:
                    status = item.stat(follow_symlinks=False)
                except FileNotFoundError:
                    continue  # removed since it was listed
                entries.append(FolderEntry(item.name, stat.S_ISDIR(status.st_mode), status.st_size))
        return entries

    def make_folder(self, folder: Path) -> None:
        if folder.is_dir():
            with contextlib.suppress(PermissionError):  # not ours, and not created by us
                self.sync_folder(folder.parent)  # created by a process that was killed before it could
            return
        self.make_folder(folder.parent)
        with contextlib.suppress(FileExistsError):
            os.mkdir(folder, FOLDER_MODE)
        self.sync_folder(folder.parent)

    def sync_folder(self, folder: Path) -> None:
        fd = self._reserve.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)
            self._reserve.fill()

    def rename(self, source: Path, target: Path) -> None:
        os.rename(source, target)

    def remove(self, path: Path) -> None:
        os.unlink(path)

    def remove_folder(self, folder: Path) -> None:
        os.rmdir(folder)

    def lock(self, path: Path) -> FolderLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)
        try:
            take_lock(fd, path)
            os.ftruncate(fd, 0)
            os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BaseException:
            os.close(fd)
            raise
        self._reserve.hold()
        return _LocalLock(fd, self._reserve)


class _LocalLock:
    _held: ClassVar[weakref.WeakSet[_LocalLock]] = weakref.WeakSet()

    def __init__(self, fd: int, reserve: _DescriptorReserve) -> None:
        self._fd = fd
        self._reserve = reserve
        self._held.add(self)

    @classmethod
    def forked(cls) -> None:
        """In a forked child, close the inherited lock, which would outlive the owner. The owner's own lock is
        unaffected.
        """
        for lock in cls._held:
            fd, lock._fd = lock._fd, -1
            if fd >= 0:
                os.close(fd)

    def release(self) -> None:
        if self._fd >= 0:
            os.ftruncate(self._fd, 0)
            os.close(self._fd)
            self._fd = -1
            self._reserve.release()


class _DescriptorReserve:
    """A few descriptors that the owner of a folder reserves for when the process has no others left."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._held: list[int] = []
        self._owners = 0

    def hold(self) -> None:
        with self._guard:
            self._owners += 1
        self.fill()

    def release(self) -> None:
        with self._guard:
            self._owners -= 1
            while self._held and not self._owners:
                os.close(self._held.pop())

    def fill(self) -> None:
        """Refill the reserve, as far as descriptors are available."""
        with self._guard, contextlib.suppress(OSError):
            while self._owners and len(self._held) < _DESCRIPTORS_HELD:
                self._held.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """Call `os.open`, using a reserved descriptor if the process has none left."""
        try:
            return os.open(path, flags | os.O_CLOEXEC, mode)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            with self._guard:
                if not self._held:
                    raise
                os.close(self._held.pop())
                return os.open(path, flags | os.O_CLOEXEC, mode)


os.register_at_fork(after_in_child=_LocalLock.forked)


class _LocalFile:
    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, pieces: Sequence[Buffer], position: int) -> None:
        views = [memoryview(piece).cast("B") for piece in pieces]
        while views:  # usually one iteration
            written = os.pwritev(self._fd, views[:_VECTORS_MAX], position)
            position += written
            while views and written >= len(views[0]):
                written -= len(views[0])
                del views[0]
            if views and written:
                views[0] = views[0][written:]

    def read(self, length: int, position: int) -> bytes:
        data = os.pread(self._fd, length, position)
        if len(data) == length or not data:
            return data
        pieces = [data]  # a short read may be a signal or the end; only an empty one is the end
        got = len(data)
        while got < length and (more := os.pread(self._fd, length - got, position + got)):
            pieces.append(more)
            got += len(more)
        return b"".join(pieces)

    def allocate(self, position: int, length: int) -> None:
        os.posix_fallocate(self._fd, position, length)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __del__(self) -> None:
        self.close()

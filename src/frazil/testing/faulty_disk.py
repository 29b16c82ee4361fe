"""A disk in RAM that simulates the faults of a real one: lost, torn and refused writes.

Writes go to a volatile cache. `File.sync` makes a file's bytes and size durable, `Disk.sync_folder` makes the names in
a folder durable; a synced file may vanish if its name was not synced. `crash` returns the disk as it may look after a
power cut: every page written since the last sync survives or not, independently, torn at sectors, in any of its
intermediate states; sizes and names likewise. A rename is atomic, as on a journalling file system, and is durable once
either of its folders was synced.

A failed sync leaves the pages clean, as Linux does: they read as written, a later sync succeeds without writing them,
and after a power cut they are lost.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from typing_extensions import Buffer

from frazil.core.disk import File, FolderEntry, FolderLock
from frazil.core.errors import FolderInUse
from frazil.testing.power_cut import (
    DiskState,
    FileNode,
    FolderNode,
    NameChange,
    Node,
    Survivors,
    apply_names,
    page_of,
    set_page,
    set_size,
    size_of,
)

Operation = Literal[
    "create", "write", "allocate", "truncate", "sync", "rename", "remove", "make_folder", "remove_folder",
    "sync_folder", "open",
]  # fmt: skip
"""Operations that can fail: all that change the disk, which are also counted; and `open` of an existing file."""


class PowerCut(BaseException):
    """The machine has lost power: no code of the program may continue, so `except Exception` must not catch it."""


@dataclass
class _Failure:
    operation: Operation
    errno: int
    after: int
    times: int


class FaultyDisk:
    """A `frazil.core.disk.Disk`. One object represents one process that uses the disk.

    `capacity_bytes` limits the sum of all file sizes; beyond it, writes are cut short and raise ENOSPC.
    """

    def __init__(
        self,
        *,
        capacity_bytes: int | None = None,
        page_bytes: int = 4096,
        sector_bytes: int = 512,
        rng: random.Random | None = None,
        _state: DiskState | None = None,
    ) -> None:
        if page_bytes % sector_bytes:
            raise ValueError("a page is a whole number of sectors")
        self._state = _state or DiskState(FolderNode(), page_bytes, sector_bytes)
        self._rng = rng or random.Random(0)  # noqa: S311 - for faults that can be repeated, not for secrets
        self._failures: list[_Failure] = []
        self._locked: set[Path] = set()
        self._watcher: Callable[[Operation, Path], None] | None = None
        self._cut_at: int | None = None
        self._dead = False
        self.capacity_bytes = capacity_bytes
        self.operations = 0

    # --- control

    def crash(self, rng: random.Random) -> FaultyDisk:
        """Return the disk as it may be after a power cut now. This disk is unchanged: crash it again, or continue."""
        with self._state.guard:
            root = Survivors(self._state, rng).root()
            state = DiskState(root, self._state.page_bytes, self._state.sector_bytes)
            return FaultyDisk(capacity_bytes=self.capacity_bytes, rng=rng, _state=state)

    def kill(self) -> FaultyDisk:
        """Return the disk as the next process sees it after SIGKILL: nothing is lost, but nothing was synced either.

        Every further call of this object, which is the killed process, raises `PowerCut`.
        """
        with self._state.guard:
            self._dead = True
            return FaultyDisk(capacity_bytes=self.capacity_bytes, rng=self._rng, _state=self._state)

    def cut_power_after(self, operations: int | None) -> None:
        """Raise `PowerCut` in the middle of the operation after that many more, and from then on; None cancels it."""
        self._cut_at = None if operations is None else self.operations + operations

    def fail(self, operation: Operation, error: int, *, after: int = 0, times: int = 1) -> None:
        """Make an operation fail with an errno, `times` times, after it succeeded `after` times."""
        self._failures.append(_Failure(operation, error, after, times))

    @property
    def failures_left(self) -> int:
        """Return how many requested failures have not happened yet."""
        return sum(failure.times for failure in self._failures)

    def mend(self) -> None:
        """Stop all failures."""
        self._failures.clear()

    def watch(self, watcher: Callable[[Operation, Path], None] | None) -> None:
        """Call `watcher` before every operation, for example to `crash` at each point of a scenario."""
        self._watcher = watcher

    @property
    def used_bytes(self) -> int:
        with self._state.guard:
            return size_of(self._state.root)

    # --- Disk

    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> File:
        with self._state.guard:
            self._check_power()
            if mode != "create":
                if (failure := self._failure("open")) is not None:
                    raise _error(failure, path)
                return _FaultyFile(self, path, self._file(path))
            parent = self._folder(path.parent)
            if path.name in parent.entries:
                raise _error(errno.EEXIST, path)
            node = FileNode()
            self._perform("create", path, lambda: self._change_names([(parent, path.name, node)]))
            return _FaultyFile(self, path, node)

    def list(self, folder: Path) -> list[FolderEntry]:
        with self._state.guard:
            self._check_power()
            return [
                FolderEntry(name, isinstance(node, FolderNode), len(node.cache) if isinstance(node, FileNode) else 0)
                for name, node in self._folder(folder).entries.items()
            ]

    def make_folder(self, folder: Path) -> None:
        with self._state.guard:
            self._check_power()
            if folder == folder.parent:
                return
            if self._find(folder) is None:
                self.make_folder(folder.parent)
                parent = self._folder(folder.parent)
                change: NameChange = [(parent, folder.name, FolderNode())]
                self._perform("make_folder", folder, lambda: self._change_names(change))
            self._folder(folder)
            self.sync_folder(folder.parent)

    def sync_folder(self, folder: Path) -> None:
        with self._state.guard:
            self._check_power()
            node = self._folder(folder)
            self._perform("sync_folder", folder, lambda: None, finish=lambda: self._settle_names(node))

    def rename(self, source: Path, target: Path) -> None:
        with self._state.guard:
            self._check_power()
            node = self._find(source)
            if node is None:
                raise _error(errno.ENOENT, source)
            old, new = self._folder(source.parent), self._folder(target.parent)
            change: NameChange = [(old, source.name, None), (new, target.name, node)]
            self._perform("rename", source, lambda: self._change_names(change))

    def remove(self, path: Path) -> None:
        with self._state.guard:
            self._check_power()
            self._file(path)
            change: NameChange = [(self._folder(path.parent), path.name, None)]
            self._perform("remove", path, lambda: self._change_names(change))

    def remove_folder(self, folder: Path) -> None:
        with self._state.guard:
            self._check_power()
            if self._folder(folder).entries:
                raise _error(errno.ENOTEMPTY, folder)
            change: NameChange = [(self._folder(folder.parent), folder.name, None)]
            self._perform("remove_folder", folder, lambda: self._change_names(change))

    def lock(self, path: Path) -> FolderLock:
        with self._state.guard:
            self._check_power()
            if path in self._locked:
                raise FolderInUse(str(path.parent), os.getpid())
            self._locked.add(path)
            return _FaultyLock(self._locked, path)

    # --- names

    def _find(self, path: Path) -> Node | None:
        node: Node | None = self._state.root
        for part in path.parts[1:] if path.is_absolute() else path.parts:
            if not isinstance(node, FolderNode):
                return None
            node = node.entries.get(part)
        return node

    def _folder(self, path: Path) -> FolderNode:
        node = self._find(path)
        if not isinstance(node, FolderNode):
            raise _error(errno.ENOENT if node is None else errno.ENOTDIR, path)
        return node

    def _file(self, path: Path) -> FileNode:
        node = self._find(path)
        if not isinstance(node, FileNode):
            raise _error(errno.ENOENT if node is None else errno.EISDIR, path)
        return node

    def _change_names(self, change: NameChange) -> None:
        apply_names(change, lambda folder: folder.entries)
        self._state.pending.append(change)

    def _settle_names(self, folder: FolderNode) -> None:
        """Make the names of a folder durable, and whatever must become durable before them."""
        wanted = {id(folder)}
        kept: list[NameChange] = []
        settled: list[NameChange] = []
        for change in reversed(self._state.pending):
            folders = {id(node) for node, _, _ in change}
            if folders & wanted:
                wanted |= folders
                settled.append(change)
            else:
                kept.append(change)
        for change in reversed(settled):
            apply_names(change, lambda node: node.durable)
        self._state.pending = kept[::-1]

    # --- operations

    def _check_power(self) -> None:
        if self._dead:
            raise PowerCut

    def _perform(
        self, operation: Operation, path: Path, act: Callable[[], None], finish: Callable[[], None] | None = None
    ) -> None:
        """Count, fail if requested, and act. At a power cut, `act` is begun but `finish` is not."""
        if self._watcher is not None:
            self._watcher(operation, path)
        cut = self._cut_at is not None and self.operations >= self._cut_at
        self.operations += 1
        failure = None if cut else self._failure(operation)
        if failure is not None:
            raise _error(failure, path)
        act()
        if cut:
            self._dead = True
            raise PowerCut
        if finish is not None:
            finish()

    def _failure(self, operation: Operation) -> int | None:
        for failure in self._failures:
            if failure.operation == operation and failure.times:
                if failure.after:
                    failure.after -= 1
                    continue
                failure.times -= 1
                return failure.errno
        return None

    def _room(self, growth: int) -> int:
        """Return how much of a growth fits."""
        if self.capacity_bytes is None:
            return growth
        return max(0, min(growth, self.capacity_bytes - size_of(self._state.root)))

    # --- bytes

    def _write(self, path: Path, node: FileNode, data: bytes, position: int) -> None:
        with self._state.guard:
            self._check_power()
            growth = max(0, position + len(data) - len(node.cache))
            room = self._room(growth)
            try:
                self._perform("write", path, lambda: self._put(node, data[: len(data) - growth + room], position))
            except OSError:
                self._put(node, data[: self._rng.randrange(len(data) + 1)], position)
                raise
            if room < growth:
                raise _error(errno.ENOSPC, path)

    def _put(self, node: FileNode, data: bytes, position: int) -> None:
        if not data:
            return
        end = position + len(data)
        if end > len(node.cache):
            self._resize(node, end)
        node.cache[position:end] = data
        self._soil(node, position, end)

    def _resize(self, node: FileNode, size: int) -> None:
        before = len(node.cache)
        if size < before:
            del node.cache[size:]
            self._soil(node, size, before)
        else:
            node.cache.extend(bytes(size - before))
        node.sizes.append(size)

    def _soil(self, node: FileNode, start: int, end: int) -> None:
        page_bytes = self._state.page_bytes
        for page in range(start // page_bytes, -(-end // page_bytes)):
            node.dirty.setdefault(page, []).append(page_of(node.cache, page, page_bytes))

    def _allocate(self, path: Path, node: FileNode, position: int, length: int) -> None:
        with self._state.guard:
            self._check_power()
            growth = max(0, position + length - len(node.cache))
            room = self._room(growth)
            if growth:
                self._perform("allocate", path, lambda: self._resize(node, len(node.cache) + room))
            else:
                self._perform("allocate", path, lambda: None)
            if room < growth:
                raise _error(errno.ENOSPC, path)

    def _truncate(self, path: Path, node: FileNode, size: int) -> None:
        with self._state.guard:
            self._check_power()
            self._perform("truncate", path, lambda: self._resize(node, size))

    def _sync(self, path: Path, node: FileNode) -> None:
        with self._state.guard:
            self._check_power()
            try:
                self._perform("sync", path, lambda: None, finish=lambda: self._settle_bytes(node))
            except OSError:
                self._forget_dirty(node)
                raise

    def _settle_bytes(self, node: FileNode) -> None:
        page_bytes = self._state.page_bytes
        for page in node.dirty:
            set_page(node.durable, page, page_bytes, page_of(node.cache, page, page_bytes))
        node.durable_size = len(node.cache)
        set_size(node.durable, node.durable_size)
        node.dirty.clear()
        node.sizes.clear()

    def _forget_dirty(self, node: FileNode) -> None:
        """After a failed sync, some pages are on the device, and the rest are never written."""
        page_bytes = self._state.page_bytes
        for page in node.dirty:
            if self._rng.random() < 0.5:
                set_page(node.durable, page, page_bytes, page_of(node.cache, page, page_bytes))
        node.dirty.clear()


class _FaultyFile:
    def __init__(self, disk: FaultyDisk, path: Path, node: FileNode) -> None:
        self._disk = disk
        self._path = path
        self._node: FileNode | None = node

    def write(self, pieces: Sequence[Buffer], position: int) -> None:
        data = b"".join(memoryview(piece).cast("B") for piece in pieces)
        self._disk._write(self._path, self._opened(), data, position)

    def read(self, length: int, position: int) -> bytes:
        with self._disk._state.guard:
            self._disk._check_power()
            return bytes(self._opened().cache[position : position + length])

    def allocate(self, position: int, length: int) -> None:
        self._disk._allocate(self._path, self._opened(), position, length)

    def truncate(self, size: int) -> None:
        self._disk._truncate(self._path, self._opened(), size)

    def sync(self) -> None:
        self._disk._sync(self._path, self._opened())

    def size(self) -> int:
        return len(self._opened().cache)

    def close(self) -> None:
        self._node = None

    def _opened(self) -> FileNode:
        if self._node is None:
            raise _error(errno.EBADF, self._path)
        return self._node


class _FaultyLock:
    def __init__(self, locked: set[Path], path: Path) -> None:
        self._locked = locked
        self._path = path

    def release(self) -> None:
        self._locked.discard(self._path)


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))

"""A fault at the N-th call of a scenario, whatever part is called: disk, catalog, files of tables, metadata store.

Each part counts through one `NthFault`. It fails one call, or all from then on, before or after its effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import pytest
from pyiceberg.exceptions import ServiceUnavailableError
from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO
from typing_extensions import Buffer

from frazil import MetadataUnavailable
from frazil.core.disk import Disk, File, FolderEntry, FolderLock
from frazil.meta.sqlite import SqliteStore

Part = Literal["disk", "catalog", "files", "metadata"]
PARTS: tuple[Part, ...] = ("disk", "catalog", "files", "metadata")
CATALOG_CALLS = ("load_table", "commit_table", "create_table", "create_namespace", "create_namespace_if_not_exists")

Found = TypeVar("Found")


@dataclass
class NthFault:
    """`at` is the number of the call that fails, counted from 0; None counts alone."""

    part: Part
    at: int | None = None
    after_effect: bool = False
    for_ever: bool = False
    count: int = 0
    failed: list[str] = field(default_factory=list)
    lifted: bool = False

    def call(self, part: Part, name: str, act: Callable[[], Found]) -> Found:
        if part != self.part or self.lifted:
            return act()
        number, self.count = self.count, self.count + 1
        fails = self.at is not None and (number == self.at or (self.for_ever and number > self.at))
        if not fails:
            return act()
        self.failed.append(name)
        if self.after_effect:
            act()
        if part == "catalog":
            raise ServiceUnavailableError("the catalog does not answer")
        if part == "metadata":
            raise MetadataUnavailable(
                "the store", "it does not answer", unclear=name in ("put_if", "put_all", "delete", "delete_all")
            )
        raise OSError(errno.EIO, os.strerror(errno.EIO), name)

    def lift(self) -> None:
        self.lifted = True

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Calls of the test itself are neither counted nor fail."""
        before, self.lifted = self.lifted, True
        try:
            yield
        finally:
            self.lifted = before

    def __str__(self) -> str:
        when = "after" if self.after_effect else "before"
        which = f"{self.at} and all later" if self.for_ever else f"{self.at}"
        return f"{self.part} call {which}, {when} its effect: {self.failed[:3]}"


class CountedDisk:
    """A `Disk` whose calls are counted and may fail."""

    def __init__(self, disk: Disk, fault: NthFault) -> None:
        self.inner: Any = disk
        self._fault = fault

    def _call(self, name: str, path: Path, act: Callable[[], Found]) -> Found:
        return self._fault.call("disk", f"{name} {path.name}", act)

    def open(self, path: Path, mode: Literal["read", "write", "create"]) -> File:
        return _CountedFile(self._call(f"open to {mode}", path, lambda: self.inner.open(path, mode)), path, self._call)

    def list(self, folder: Path) -> list[FolderEntry]:
        return self._call("list", folder, lambda: self.inner.list(folder))

    def make_folder(self, folder: Path) -> None:
        self._call("make folder", folder, lambda: self.inner.make_folder(folder))

    def sync_folder(self, folder: Path) -> None:
        self._call("sync folder", folder, lambda: self.inner.sync_folder(folder))

    def rename(self, source: Path, target: Path) -> None:
        self._call("rename", source, lambda: self.inner.rename(source, target))

    def remove(self, path: Path) -> None:
        self._call("remove", path, lambda: self.inner.remove(path))

    def remove_folder(self, folder: Path) -> None:
        self._call("remove folder", folder, lambda: self.inner.remove_folder(folder))

    def lock(self, path: Path) -> FolderLock:
        lock: FolderLock = self.inner.lock(path)
        return lock

    # --- taking over, as `MirroredDisk`

    @property
    def faults(self) -> Any:
        return self.inner.faults

    def crash(self, rng: Any) -> CountedDisk:
        return CountedDisk(self.inner.crash(rng), self._fault)

    def kill(self) -> CountedDisk:
        return CountedDisk(self.inner.kill(), self._fault)


class _CountedFile:
    def __init__(self, file: File, path: Path, call: Callable[..., Any]) -> None:
        self._file = file
        self._path = path
        self._call = call

    def write(self, pieces: Sequence[Buffer], position: int) -> None:
        self._call("write", self._path, lambda: self._file.write(pieces, position))

    def read(self, length: int, position: int) -> bytes:
        found: bytes = self._call("read", self._path, lambda: self._file.read(length, position))
        return found

    def allocate(self, position: int, length: int) -> None:
        self._call("allocate", self._path, lambda: self._file.allocate(position, length))

    def truncate(self, size: int) -> None:
        self._call("truncate", self._path, lambda: self._file.truncate(size))

    def sync(self) -> None:
        self._call("sync", self._path, self._file.sync)

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._file.close()


def count_catalog(catalog: Any, fault: NthFault) -> None:
    """From now on the catalog's calls are counted and may fail."""
    for name in CATALOG_CALLS:
        real = getattr(catalog, name)

        def counted(*words: Any, _name: str = name, _real: Any = real, **named: Any) -> Any:
            return fault.call("catalog", _name, lambda: _real(*words, **named))

        setattr(catalog, name, counted)


FILE_CALLS: list[tuple[type, str]] = [(PyArrowFile, "open"), (PyArrowFile, "create"), (PyArrowFileIO, "delete")]
"""Files of tables are read, written and deleted through PyIceberg's FileIO by whatever part of the program."""

METADATA_CALLS: list[tuple[type, str]] = [
    (SqliteStore, name) for name in ("get", "put_if", "put_all", "delete", "delete_all", "list")
]


@contextlib.contextmanager
def counted_classes(fault: NthFault) -> Iterator[None]:
    """What is opened anew all the time is counted at its class."""
    parts: list[tuple[Part, list[tuple[type, str]]]] = [("files", FILE_CALLS), ("metadata", METADATA_CALLS)]
    with pytest.MonkeyPatch.context() as patches:
        for part, calls in parts:
            for kind, name in calls:
                patches.setattr(kind, name, _counted(fault, part, name, getattr(kind, name)))
        yield


def _counted(fault: NthFault, part: Part, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    def counted(self: Any, *words: Any, **named: Any) -> Any:
        return fault.call(part, name, lambda: real(self, *words, **named))

    return counted

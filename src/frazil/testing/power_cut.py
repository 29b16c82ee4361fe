"""The state of a `FaultyDisk`, and a randomly drawn outcome of a power cut."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False)
class FileNode:
    """A file, independent of its name: what reads see, what is on the device, and the differences."""

    cache: bytearray = field(default_factory=bytearray)
    durable: bytearray = field(default_factory=bytearray)
    durable_size: int = 0  # the bytes may be longer: pages can reach the device before the size does
    dirty: dict[int, list[bytes]] = field(default_factory=dict)  # page number: its contents since the last sync
    sizes: list[int] = field(default_factory=list)  # sizes since the last sync


@dataclass(eq=False)
class FolderNode:
    entries: dict[str, Node] = field(default_factory=dict)
    durable: dict[str, Node] = field(default_factory=dict)


Node = FileNode | FolderNode
NameChange = list[tuple[FolderNode, str, Node | None]]


class DiskState:
    """State that outlives a process: the device and the system's cache."""

    def __init__(self, root: FolderNode, page_bytes: int, sector_bytes: int) -> None:
        self.root = root
        self.pending: list[NameChange] = []
        self.page_bytes = page_bytes
        self.sector_bytes = sector_bytes
        self.guard = threading.RLock()


class Survivors:
    """One outcome of a power cut. The survival probability is itself drawn, so that all-or-nothing
    outcomes occur too.
    """

    def __init__(self, state: DiskState, rng: random.Random) -> None:
        self._state = state
        self._rng = rng
        self._kept = rng.choice([0.0, 0.1, 0.5, 0.5, 0.9, 1.0])
        self._names: dict[int, dict[str, Node]] = {}

    def root(self) -> FolderNode:
        for change in self._state.pending:
            if self._keeps():
                apply_names(change, self._entries)
        return self._folder(self._state.root)

    def _keeps(self) -> bool:
        return self._rng.random() < self._kept

    def _entries(self, folder: FolderNode) -> dict[str, Node]:
        return self._names.setdefault(id(folder), dict(folder.durable))

    def _folder(self, folder: FolderNode) -> FolderNode:
        entries: dict[str, Node] = {
            name: self._folder(node) if isinstance(node, FolderNode) else self._file(node)
            for name, node in self._entries(folder).items()
        }
        return FolderNode(entries, dict(entries))

    def _file(self, node: FileNode) -> FileNode:
        size = node.durable_size
        if node.sizes and self._keeps():
            size = node.sizes[-1] if self._rng.random() < 0.7 else self._rng.choice(node.sizes)
        data = bytearray(node.durable)
        for page, versions in node.dirty.items():
            if self._keeps():
                self._surface(data, page, versions)
        set_size(data, size)
        return FileNode(data, bytearray(data), size)

    def _surface(self, data: bytearray, page: int, versions: list[bytes]) -> None:
        """Return a page that reached the device: usually whole and newest, else older, else torn between two states."""
        page_bytes, sector_bytes = self._state.page_bytes, self._state.sector_bytes
        new = versions[-1] if self._rng.random() < 0.8 else self._rng.choice(versions)
        if self._rng.random() < 0.3:
            old = page_of(data, page, page_bytes)
            mixed = bytearray(new)
            for start in range(0, page_bytes, sector_bytes):
                if self._rng.random() < 0.5:
                    mixed[start : start + sector_bytes] = old[start : start + sector_bytes]
            new = bytes(mixed)
        set_page(data, page, page_bytes, new)


def apply_names(change: NameChange, entries_of: Callable[[FolderNode], dict[str, Node]]) -> None:
    for folder, name, node in change:
        if node is None:
            entries_of(folder).pop(name, None)
        else:
            entries_of(folder)[name] = node


def page_of(data: bytearray, page: int, page_bytes: int) -> bytes:
    return bytes(data[page * page_bytes : (page + 1) * page_bytes]).ljust(page_bytes, b"\0")


def set_page(data: bytearray, page: int, page_bytes: int, content: bytes) -> None:
    set_size(data, max(len(data), (page + 1) * page_bytes))
    data[page * page_bytes : (page + 1) * page_bytes] = content


def set_size(data: bytearray, size: int) -> None:
    del data[size:]
    data.extend(bytes(size - len(data)))


def size_of(node: Node) -> int:
    if isinstance(node, FileNode):
        return len(node.cache)
    return sum(size_of(child) for child in node.entries.values())

"""The object store: named, immutable byte strings, each created once.

    create         store an object under a name that was never used; of several callers one wins
    get, head      read an object, or a part of it, or its size
    walk, folders  the names below a prefix, in order
    delete         remove objects; a missing one is fine

`create` is the only write. The first caller that creates a name owns it; all others get `ObjectExists`.
A caller whose answer was lost asks again with the same bytes, and finds its own object.

Calls block and may come from any thread. Besides the errors named below, they raise `ObjectStoreUnavailable`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol


class ObjectExists(Exception):
    """Another object has the name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ObjectMissing(Exception):
    """There is no object of that name."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


class ObjectChanged(Exception):
    """The object is not the one that was asked for: its ETag is another."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    name: str
    size_bytes: int
    etag: str | None
    modified_us: int


class ObjectStore(Protocol):
    def create(self, name: str, content: bytes | memoryview) -> str | None:
        """Store an object durably and return its ETag. Raises `ObjectExists` if the name has other content."""
        ...

    def get(self, name: str, *, etag: str | None = None) -> bytes:
        """Return the whole object. Raises `ObjectMissing`; with `etag`, `ObjectChanged`."""
        ...

    def get_range(self, name: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        """Return a part of an object: fewer bytes only at its end."""
        ...

    def head(self, name: str) -> ObjectInfo: ...

    def walk(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        """Yield all objects below a prefix that ends with a slash, sorted by name; `after` skips up to that name."""
        ...

    def folders(self, prefix: str) -> list[str]:
        """Return the names directly below a prefix that have objects below them, sorted, without slashes."""
        ...

    def delete(self, names: Iterable[str]) -> None: ...

"""An object store whose faults a test chooses: away, slow, losing answers, stopped between a check and a write."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from frazil.core.errors import ObjectStoreUnavailable
from frazil.objects.store import ObjectInfo, ObjectStore


class FaultyStore:
    """Passes on to `inner`. `before_create` is called in the thread of each creation, and may block or raise."""

    def __init__(self, inner: ObjectStore) -> None:
        self.inner = inner
        self.is_away = False
        self.loses_answers = 0
        self.before_create: Callable[[str], None] = lambda name: None
        self.creates: list[str] = []
        self.at_once = self.at_once_max = 0
        self._guard = threading.Lock()

    def create(self, name: str, content: bytes | memoryview) -> str | None:
        with self._guard:
            self.creates.append(name)
            self.at_once += 1
            self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            self.before_create(name)
            self._answer(name)
            etag = self.inner.create(name, content)
            with self._guard:
                self.loses_answers -= 1
                if self.loses_answers >= 0:
                    raise ObjectStoreUnavailable(name, "the answer was lost")
                self.loses_answers = 0
            return etag
        finally:
            with self._guard:
                self.at_once -= 1

    def get(self, name: str, *, etag: str | None = None) -> bytes:
        self._answer(name)
        return self.inner.get(name, etag=etag)

    def get_range(self, name: str, start: int, length: int, *, etag: str | None = None) -> bytes:
        self._answer(name)
        return self.inner.get_range(name, start, length, etag=etag)

    def head(self, name: str) -> ObjectInfo:
        self._answer(name)
        return self.inner.head(name)

    def walk(self, prefix: str, after: str | None = None) -> Iterator[ObjectInfo]:
        self._answer(prefix)
        return self.inner.walk(prefix, after)

    def folders(self, prefix: str) -> list[str]:
        self._answer(prefix)
        return self.inner.folders(prefix)

    def delete(self, names: Iterable[str]) -> None:
        self._answer("deletion")
        self.inner.delete(names)

    def _answer(self, name: str) -> None:
        if self.is_away:
            raise ObjectStoreUnavailable(name, "it is away")

"""Namespaces: `default`, those of existing topics, and those that were created.

Creating a topic creates its namespace. A namespace that was created explicitly exists before its first topic, and after
its last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from frazil.core.errors import InvalidInput, NamespaceExists, NamespaceInUse, NamespaceNotFound
from frazil.core.names import TopicName, check_namespace
from frazil.log.storage import Storage
from frazil.meta.broker_keys import NAMESPACES
from frazil.meta.store import ABSENT, MetaStore

DEFAULT = "default"


class Namespaces:
    """All calls block."""

    def __init__(self, meta: MetaStore, storage: Storage, known: Callable[[], Iterable[TopicName]]) -> None:
        """`known` returns topics, including those that the log does not know. It is called from any thread."""
        self._meta = meta
        self._storage = storage
        self._known = known

    def names(self) -> list[str]:
        return sorted({DEFAULT, *self._made(), *self._topics_of()})

    def topics(self, name: str) -> list[TopicName]:
        """Return the topics in a namespace."""
        return [topic for topic in self._storage.names() | set(self._known()) if topic.namespace == name]

    def check_there(self, name: str) -> None:
        check_namespace(name)
        if name not in self.names():
            raise NamespaceNotFound(name)

    def create(self, name: str) -> None:
        check_namespace(name)
        if name in (DEFAULT, *self._topics_of()) or self._meta.put_if(NAMESPACES + name, b"{}", ABSENT) is None:
            raise NamespaceExists(name)

    def delete(self, name: str) -> None:
        """Delete only an empty namespace: topics are deleted one by one."""
        self.check_there(name)
        if name == DEFAULT:
            raise InvalidInput(f"namespace: {DEFAULT} is always there", field="namespace")
        topics = self._topics_of().get(name, 0)
        if topics:
            raise NamespaceInUse(name, topics)
        self._meta.delete_all([NAMESPACES + name])

    def _made(self) -> set[str]:
        return {entry.key.removeprefix(NAMESPACES) for entry in self._meta.list(NAMESPACES)}

    def _topics_of(self) -> dict[str, int]:
        """Return the number of topics in each namespace."""
        counts: dict[str, int] = {}
        for topic in self._storage.names() | set(self._known()):
            counts[topic.namespace] = counts.get(topic.namespace, 0) + 1
        return counts

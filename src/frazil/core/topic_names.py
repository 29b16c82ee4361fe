"""The names of existing topics, and the check of a new topic's name against them."""

from __future__ import annotations

from collections import Counter

from frazil.core.errors import InvalidName, TopicExists
from frazil.core.names import TopicName
from frazil.core.partitions import check_form


class TopicNames:
    """A set of names that also finds the partitions of a topic, and conflicting names."""

    def __init__(self) -> None:
        self._names: set[TopicName] = set()
        self._partitions: Counter[TopicName] = Counter()
        self._folded: dict[str, set[TopicName]] = {}
        self.changes = 0
        """Incremented by every change."""

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def all(self) -> set[TopicName]:
        return set(self._names)

    def add(self, name: TopicName) -> None:
        self.changes += 1
        base = name.partition_of()[0]
        self._folded.setdefault(str(base).lower(), set()).add(name)
        if base != name and name not in self._names:
            self._partitions[base] += 1
        self._names.add(name)

    def discard(self, name: TopicName) -> None:
        self.changes += 1
        base = name.partition_of()[0]
        folded = self._folded.get(str(base).lower(), set())
        folded.discard(name)
        if not folded:
            self._folded.pop(str(base).lower(), None)
        if base != name and name in self._names:
            self._partitions[base] -= 1
            if not self._partitions[base]:
                del self._partitions[base]
        self._names.discard(name)

    def family(self, name: TopicName) -> set[TopicName]:
        """Return the existing ones of the topic (without partition number) and its partitions."""
        base = name.partition_of()[0]
        return {one for one in tuple(self._folded.get(str(base).lower(), ())) if one.partition_of()[0] == base}

    def has_partitions(self, name: TopicName) -> bool:
        return self._partitions[name] > 0

    def check_new(self, name: TopicName) -> None:
        """Refuse the name of a new topic that exists, or conflicts with an existing one."""
        name.check_new()
        if name in self._names:
            raise TopicExists(str(name))
        check_form(name, self._names, has_partitions=self.has_partitions(name))
        base, number = name.partition_of()
        for other in sorted(self._folded.get(str(base).lower(), ())):
            if other.partition_of() == (base, number):
                raise InvalidName(
                    f"the topic {name} would be the same partition as {other}, and a table has each number once; use "
                    "another name",
                    name=str(name),
                    field="topic",
                    conflicts_with=str(other),
                )
        for other in sorted(self._folded.get(str(base).lower(), ())):
            if other.partition_of()[0] != base:
                raise twins(name, other)


def twins(name: TopicName, other: TopicName) -> InvalidName:
    return InvalidName(
        f"the topic {name} differs from {other} in case alone, and SQL and many catalogs would take their "
        "tables for one; use another name",
        name=str(name),
        field="topic",
        conflicts_with=str(other),
    )

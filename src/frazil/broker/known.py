"""The topics that a broker knows, also by the topic that they are partitions of."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from frazil.broker.topic import BrokerTopic
from frazil.core.names import TopicName

_NONE: frozenset[TopicName] = frozenset()


class KnownTopics(dict[TopicName, BrokerTopic]):
    """Changed by `add` and `remove` alone, so that a question about one topic looks at no other."""

    def __init__(self) -> None:
        super().__init__()
        self._families: dict[TopicName, set[TopicName]] = {}

    def add(self, topic: BrokerTopic) -> None:
        self[topic.name] = topic
        self._families.setdefault(topic.name.partition_of()[0], set()).add(topic.name)

    def remove(self, name: TopicName) -> BrokerTopic | None:
        base = name.partition_of()[0]
        family = self._families.get(base, set())
        family.discard(name)
        if not family:
            self._families.pop(base, None)
        return self.pop(name, None)

    def family(self, name: TopicName) -> AbstractSet[TopicName]:
        """The topic that `name` is, or is a partition of, and its partitions: those of them that are known."""
        return self._families.get(name.partition_of()[0], _NONE)

"""The topics that a broker knows, indexed also by their base topic."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from frazil.broker.topics.topic import BrokerTopic
from frazil.core.errors import TryLater
from frazil.core.names import TopicName
from frazil.core.topic_names import TopicNames


class KnownTopics(dict[TopicName, BrokerTopic]):
    """Changed only by `add` and `remove`, so that a query of one topic reads no other."""

    def __init__(self) -> None:
        super().__init__()
        self._names = TopicNames()

    def add(self, topic: BrokerTopic) -> None:
        self[topic.name] = topic
        self._names.add(topic.name)

    def remove(self, name: TopicName) -> BrokerTopic | None:
        self._names.discard(name)
        return self.pop(name, None)

    def family(self, name: TopicName) -> AbstractSet[TopicName]:
        """The topic that `name` is, or is a partition of, and its partitions: those of them that are known."""
        return self._names.family(name)

    def check_still_there(self, topic: BrokerTopic) -> None:
        """Refuse a change of a topic that was deleted or moved while the change waited; raises `TryLater`."""
        if self.get(topic.name) is not topic:
            raise TryLater(f"{topic.name} was deleted or moved just now; try again")

"""The queries of a broker, which change nothing and ask no store."""

from __future__ import annotations

from frazil.broker.clients import ConsumerPlace, Producer
from frazil.broker.producers import BrokerProducers
from frazil.broker.subscriptions.figures import SubscriptionFigures, all_figures
from frazil.broker.topics.directory import Directory
from frazil.broker.topics.known import KnownTopics
from frazil.core.names import TopicName


class BrokerQueries:
    _topics: KnownTopics
    _directory: Directory
    _producers: BrokerProducers
    _consumers: dict[int, ConsumerPlace]
    _closing: bool

    def knows(self, name: TopicName) -> bool:
        return name in self._topics

    def partitions(self, name: TopicName) -> list[str]:
        """Return the topic itself, or its partitions in order; empty if neither is known."""
        return [str(one) for one in self._directory.partitions(name)]

    def acked(self, name: TopicName) -> int:
        """See `BrokerTopic.acked_end`."""
        return self._topics[name].acked_end() if name in self._topics else 0

    def figures(self) -> list[SubscriptionFigures]:
        """Thread-safe."""
        return all_figures(list(self._topics.values()))

    @property
    def producer_count(self) -> int:
        return len(self._producers)

    def find_producer(self, number: int) -> Producer | None:
        return None if self._closing else self._producers.find(number)

    def has_producer(self, number: int) -> bool:
        return self.find_producer(number) is not None

    def find_consumer(self, number: int) -> ConsumerPlace | None:
        """Return the consumer if it is known, connected or not: before the stream is opened or reopened."""
        return None if self._closing else self._consumers.get(number)

    def has_consumer(self, number: int) -> bool:
        return self.find_consumer(number) is not None

    def has_forgotten(self, number: int) -> bool:
        """Whether a former consumer was deleted with its subscription or its topic."""
        return number not in self._consumers

    @property
    def topics(self) -> KnownTopics:
        return self._topics

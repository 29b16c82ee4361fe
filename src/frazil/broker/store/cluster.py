"""What a broker knows of the cluster that shares its metadata store."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Protocol

from frazil.core.names import TopicName

if TYPE_CHECKING:
    from frazil.broker.topics.topic import OutgoingMessage


class Cluster(Protocol):
    """Queries do no I/O, from any thread."""

    @property
    def broker_id(self) -> str: ...

    async def created(self, topic: TopicName) -> None:
        """Return when a topic that this broker has just created is served. It may wait for the object store."""
        ...

    async def publish_elsewhere(self, topic: TopicName, message: OutgoingMessage) -> bool:
        """Publish a message at the broker that serves the topic, durably; returns False if this one is to do it.

        Raises `TopicUnavailable`, or what the other broker answers; the message may have been published then.
        """
        ...

    def owns(self, name: TopicName) -> bool:
        """Whether this broker owns the topic by its record, served or not."""
        ...

    def serves(self, name: TopicName) -> bool:
        """Whether this broker serves the topic now: it has loaded all that is stored of it."""
        ...

    def family(self, name: TopicName) -> Collection[TopicName]:
        """Return the existing ones of the topic (without partition number) and its partitions, with any owner."""
        ...

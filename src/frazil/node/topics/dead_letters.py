"""Read dead letters, and publish them again to their topics."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from frazil.broker.broker import Broker
from frazil.broker.topics.dead_letters import (
    ATTEMPTS,
    BROKER,
    OURS,
    PRODUCER,
    REASON,
    SUBSCRIPTION,
    TOPIC,
    dead_letter_topic,
)
from frazil.broker.topics.replay import (
    LetterPage,
    Replayed,
    original_offset,
    read_dead_letters,
    replay_all,
    replay_one,
)
from frazil.core.names import TopicName
from frazil.core.principal import ANONYMOUS, Principal
from frazil.core.rows import Message
from frazil.log.storage import Storage
from frazil.node.publish.publishers import MessagePublisher

__all__ = [
    "ATTEMPTS",
    "BROKER",
    "OURS",
    "PRODUCER",
    "REASON",
    "SUBSCRIPTION",
    "TOPIC",
    "DeadLetterTopics",
    "dead_letter_topic",
    "original_offset",
]


class DeadLetterTopics:
    """The dead letters of a topic's subscriptions. `source` is a policy's dead-letter topic, if not the default one."""

    def __init__(
        self,
        storage: Storage,
        broker: Callable[[], Broker],
        messages: Callable[[], MessagePublisher],
        may_publish: Callable[[TopicName], None],
        transfer: Callable[[int], None],
        who: Principal = ANONYMOUS,
    ) -> None:
        """`broker` is asked when letters are published again: they can be read without one.

        `may_publish` raises if the caller may not publish to the topic that a letter names: any producer of the
        dead-letter topic can name any topic. `transfer` counts the bytes of letters, and raises `QuotaExceeded`.
        """
        self._may_publish = may_publish
        self._transfer = transfer
        self._who = who
        self._storage = storage
        self._broker = broker
        self._messages = messages

    def read(self, topic: TopicName, after: int | None, limit: int, source: TopicName | None) -> LetterPage:
        """Read a page of letters, oldest first. Blocks."""
        self._transfer(0)  # a caller in debt makes the server read nothing
        found = read_dead_letters(self._storage, topic, after, limit, source)
        self._transfer(sum(map(size_bytes, found.letters)))
        return found

    async def replay_one(self, topic: TopicName, offset: int, source: TopicName | None) -> None:
        broker, publish = self._broker(), partial(self._messages().publish, who=self._who)
        await replay_one(broker, publish, self._storage, topic, offset, source, self._admit)

    async def replay_all(self, topic: TopicName, after: int | None, limit: int, source: TopicName | None) -> Replayed:
        """At least once: the letters stay."""
        broker, publish = self._broker(), partial(self._messages().publish, who=self._who)
        return await replay_all(broker, publish, self._storage, topic, after, limit, source, self._admit)

    def _admit(self, topic: TopicName, letter: Message) -> None:
        self._may_publish(topic)
        self._transfer(size_bytes(letter))


def size_bytes(letter: Message) -> int:
    """The size of a letter without its envelope, as quotas count it."""
    attributes = sum(len(name.encode()) + len((value or "").encode()) for name, value in letter.attributes.items())
    return len(letter.payload) + len(letter.key or b"") + attributes

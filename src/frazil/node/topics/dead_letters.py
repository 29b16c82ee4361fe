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
        who: Principal = ANONYMOUS,
    ) -> None:
        """`broker` is asked when letters are published again: they can be read without one.

        `may_publish` raises if the caller may not publish to the topic that a letter names: any producer of the
        dead-letter topic can name any topic.
        """
        self._may_publish = may_publish
        self._who = who
        self._storage = storage
        self._broker = broker
        self._messages = messages

    def read(self, topic: TopicName, after: int | None, limit: int, source: TopicName | None) -> LetterPage:
        """Read a page of letters, oldest first. Blocks."""
        return read_dead_letters(self._storage, topic, after, limit, source)

    async def replay_one(self, topic: TopicName, offset: int, source: TopicName | None) -> None:
        broker, publish = self._broker(), partial(self._messages().publish, who=self._who)
        await replay_one(broker, publish, self._storage, topic, offset, source, self._may_publish)

    async def replay_all(self, topic: TopicName, after: int | None, limit: int, source: TopicName | None) -> Replayed:
        """At least once: the letters stay."""
        broker, publish = self._broker(), partial(self._messages().publish, who=self._who)
        return await replay_all(broker, publish, self._storage, topic, after, limit, source, self._may_publish)

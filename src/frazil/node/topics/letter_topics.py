"""The dead-letter topics of policies, while security is on: a policy needs rights on the topic that it writes to.

The broker publishes dead letters for the caller. So the caller must be allowed to publish there; and to create the
topic if it does not exist, which is then created with the policy, and charged to the caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from frazil.core import access
from frazil.core.access import Action
from frazil.core.names import TopicName
from frazil.core.principal import Principal
from frazil.node.access.gate import Gate
from frazil.node.access.topic_quotas.claims import Elsewhere

if TYPE_CHECKING:
    from frazil.node.topics.topics import Topics


class LetterTopics:
    """See `BrokerAdmin`. For event loops."""

    def __init__(self, gate: Gate, topics: Topics, elsewhere: Elsewhere, who: Principal, peer: str) -> None:
        self._gate = gate
        self._topics = topics
        self._elsewhere = elsewhere
        self._who = who
        self._peer = peer

    @asynccontextmanager
    async def allowed(self, letters: TopicName) -> AsyncIterator[bool]:
        """Check the rights for a dead-letter topic. Yields whether the block is to create it; then it is charged."""
        resource = access.topic(str(letters))
        if not self._gate.allows(self._who, Action.PRODUCE, resource):  # a door has checked before
            self._gate.check(self._who, Action.PRODUCE, resource, self._peer)
        if letters in self._elsewhere(letters) or letters in await self._topics.run(self._topics.family, letters):
            yield False
            return
        self._gate.check(self._who, Action.CREATE, resource, self._peer)
        async with self._topics.creating(self._who, letters):
            yield True

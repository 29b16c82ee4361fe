"""Topics that another broker owns: calls for them are refused with the address of the owner, and their streams end.

    check     for a call: raises `NotOwner`, or `TopicUnavailable` while no broker serves the topic
    is_here   for a health check
    place     for a stream, which checks it again for each batch and while it is idle
    may_tell  for a call that creates a topic: whether it is checked at all

A server that is alone owns every topic: then nothing is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from frazil.core import access
from frazil.core.access import Action
from frazil.core.errors import NotOwner, PartitionsElsewhere, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.partitions import topic_or_partitions
from frazil.core.principal import ANONYMOUS, Principal
from frazil.doors.admission import Place
from frazil.node.node import Node
from frazil.node.ownership.ownership import Ownership


class Owning:
    """Asks the Node at each call: it joins the cluster when it starts, after some doors were made."""

    def __init__(self, node: Node) -> None:
        self._node = node

    @property
    def ownership(self) -> Ownership:
        return self._node.ownership(ANONYMOUS)

    @property
    def is_clustered(self) -> bool:
        return self.ownership.is_clustered

    def check(self, topic: str | TopicName) -> None:
        ownership = self.ownership
        if ownership.is_clustered:
            ownership.must_own(topic if isinstance(topic, TopicName) else TopicName.parse(topic))

    def may_tell(self, who: Principal, topic: TopicName) -> bool:
        """Whether the caller may learn that a topic is at another broker when it creates one of that name.

        Without `describe` it must not: the creation refuses what exists as if the right were missing.
        """
        return self._node.gate.allows(who, Action.DESCRIBE, access.topic(str(topic)))

    def moved(self, topic: TopicName) -> str:
        """Say where a topic that was moved just now is, for the audit log."""
        owner = self.ownership.owner_of(topic)
        return f"moved to {'another broker' if owner is None else owner.broker_id}"

    def is_here(self, topic: TopicName) -> bool:
        ownership = self.ownership
        if ownership.is_clustered:
            try:
                ownership.must_own(topic)
            except (NotOwner, TopicUnavailable):
                return False
        return True

    def elsewhere(self, topic: TopicName) -> NotOwner | None:
        """Return the error with the owner's address if another broker owns it; raises `TopicUnavailable`."""
        ownership = self.ownership
        if ownership.is_clustered:
            try:
                ownership.must_own(topic)
            except NotOwner as error:
                return error
        return None

    def place(self, topic: str | TopicName) -> Place | None:
        """Return the check for a stream of one topic; None if there is nothing to check."""
        ownership = self.ownership
        if not ownership.is_clustered:
            return None
        return partial(self.check, topic if isinstance(topic, TopicName) else TopicName.parse(topic))

    def check_family(self, name: TopicName) -> None:
        """Check for a call on a topic, or on all its partitions: then all of them must be here.

        Raises `PartitionsElsewhere` if no single broker has them all.
        """
        ownership = self.ownership
        if not ownership.is_clustered:
            return
        names = self.of_call(name)
        elsewhere: list[NotOwner] = []
        for one in names:
            try:
                ownership.must_own(one)
            except NotOwner as error:
                elsewhere.append(error)
        if not elsewhere:
            return
        if len(elsewhere) == len(names) and len({error.fields["broker_id"] for error in elsewhere}) == 1:
            raise elsewhere[0]
        raise PartitionsElsewhere(str(name), {one.fields["topic"]: one.fields["broker_id"] for one in elsewhere})

    def of_call(self, name: TopicName) -> Sequence[TopicName]:
        """Return the topic itself, or its partitions in order, with any owner; the name itself if there are none."""
        return topic_or_partitions(name, self.ownership.family(name))

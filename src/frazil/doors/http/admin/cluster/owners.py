"""Topics in a cluster: calls for the topics of other brokers, and what a broker can say about those.

A route of one topic depends on `AT_OWNER`: a broker that does not own the topic redirects the call to its owner. Lists
name all topics of the cluster; figures of a topic are known to its owner alone, and null at other brokers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import Depends, Request

from frazil.core import access
from frazil.core.access import Action
from frazil.core.errors import TopicNotFound, TopicUnavailable
from frazil.core.names import TopicName
from frazil.core.principal import Principal
from frazil.doors.http.admin.paths import TopicPath
from frazil.doors.owning import Owning
from frazil.node.node import Node
from frazil.node.types.log import summed, total

UNKNOWN = (
    "log_id", "typed", "ack", "messages", "first_offset", "end", "segments", "bytes", "created_us", "schema",
    "retention", "reliable", "producers", "subscriptions",
)  # fmt: skip
"""Fields of a topic summary that only the owner knows."""


async def _at_owner(request: Request, name: TopicPath) -> None:
    Owning(request.app.state.node).check_family(name)


AT_OWNER = Depends(_at_owner)
"""Refuse a call for a topic of another broker with a redirect. It follows `needs` in a list of dependencies: a caller
without the right does not learn who owns the topic."""


class TopicViews:
    """Lists and descriptions of topics, with their owners. All calls block."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._owning = Owning(node)

    def names(self, who: Principal) -> list[TopicName]:
        """Return all topics and partitions of the cluster."""
        here = self._node.topics(who).names()
        return here if not self._owning.is_clustered else sorted({*here, *self._owning.ownership.topics()})

    def family(self, who: Principal, name: TopicName) -> set[TopicName]:
        here = self._node.topics(who).family(name)
        return here if not self._owning.is_clustered else here | set(self._owning.ownership.family(name))

    def summaries(self, who: Principal, names: Iterable[TopicName]) -> list[dict[str, Any]]:
        """Summarize topics for a list. Deleted ones are left out."""
        wanted = list(names)
        elsewhere = {name: found for name in wanted if (found := self._elsewhere(name)) is not None}
        here = self._node.topics(who).summaries(name for name in wanted if name not in elsewhere)
        found = {one["topic"]: {**one, "owner": self._owner(TopicName.parse(one["topic"]))} for one in here}
        found |= {str(name): one for name, one in elsewhere.items()}
        return [found[str(name)] for name in wanted if str(name) in found]

    def describe(self, who: Principal, name: TopicName) -> dict[str, Any]:
        """Describe a topic of this broker, or the sums of its partitions: null if some of them are elsewhere."""
        names = self._owning.of_call(name)
        if not self._owning.is_clustered or all(self._owning.is_here(one) for one in names):
            found = self._node.describe_topic(who, name)
            parts = [{**one, "owner": self._owner(TopicName.parse(one["topic"]))} for one in found["partitions"]]
            return {**found, "owner": None if parts else self._owner(name), "partitions": parts}
        self._node.must(who, Action.DESCRIBE, access.topic(str(name)))
        if list(names) == [name]:
            self._owning.check(name)
        return self._spread(who, name, names)

    def owners(self, name: TopicName) -> list[dict[str, Any]]:
        """Return the owner of a topic, or of each of its partitions."""
        found = []
        for one in self._owning.of_call(name):
            owner = self._owning.ownership.owner_of(one)
            found.append(
                {
                    "topic": str(one),
                    "broker_id": None if owner is None else owner.broker_id,
                    "addresses": {} if owner is None else dict(owner.addresses),
                    "state": None if owner is None else owner.state,
                    "problem": self._problem(one),
                }
            )
        return found

    def _spread(self, who: Principal, name: TopicName, names: Sequence[TopicName]) -> dict[str, Any]:
        found = self.summaries(who, names)
        if not found:
            raise TopicNotFound(str(name))
        unknown = dict.fromkeys(
            ("durable_end", "unsynced", "reserved_bytes", "cached_from", "queued_bytes", "last_append_time_us",
             "torn_tail", "failed", "held_back", "tiers", "partition_of")
        )  # fmt: skip
        return {
            **unknown,
            **summed(str(name), found),
            **{figure: total(found, figure) for figure in ("producers", "subscriptions")},
            "reliable": next((one["reliable"] for one in found if one["reliable"] is not None), None),
            "owner": None,
            "partitions": found,
        }

    def _elsewhere(self, name: TopicName) -> dict[str, Any] | None:
        """Return what is known of a topic that is not here; None for one that is."""
        if self._owning.is_here(name):
            return None
        owner, problem = self._owner(name), self._problem(name)
        return {"topic": str(name), **dict.fromkeys(UNKNOWN), "problem": problem, "owner": owner}

    def _owner(self, name: TopicName) -> str | None:
        found = self._owning.ownership.owner_of(name)
        return None if found is None else found.broker_id

    def _problem(self, name: TopicName) -> str | None:
        try:
            self._owning.elsewhere(name)
        except TopicUnavailable as error:
            return str(error.fields["reason"])
        return None

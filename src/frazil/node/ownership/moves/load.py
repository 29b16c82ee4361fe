"""The load of topics, by which they are spread over the brokers.

Every topic counts 1. Traffic adds to it: 1 for each `TRAFFIC_BYTES_S` that are published to it, as a mean over about
`WINDOW_S`. So brokers without traffic get the same number of topics, and a broker with heavy topics gets fewer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from frazil.core.names import TopicName
from frazil.meta.cluster_keys import LoadsRecord

TOPIC_LOAD = 1.0
TRAFFIC_BYTES_S = 100_000
WINDOW_S = 60.0
LISTED_MAX = 1_000
"""How many topics are announced with their own traffic: those with the most."""
LISTED_MIN = 0.1
"""Topics with less are announced as one sum, and those with a hundredth of it are forgotten."""
CHANGED_PART = 0.1
"""The loads are announced when their sum has changed by this part, or by one topic."""


class TrafficLoads:
    """The mean traffic of the topics of this broker. Costs as much as there are topics with traffic."""

    def __init__(self) -> None:
        self._loads: dict[TopicName, float] = {}

    def add(self, published_bytes: Mapping[TopicName, int], seconds: float) -> None:
        """Record the bytes that were published to each topic in the last seconds."""
        kept = math.exp(-seconds / WINDOW_S)
        for topic in self._loads.keys() | published_bytes.keys():
            rate = published_bytes.get(topic, 0) / seconds / TRAFFIC_BYTES_S
            load = self._loads.get(topic, 0.0) * kept + rate * (1 - kept)
            if load < LISTED_MIN / 100:
                self._loads.pop(topic, None)
            else:
                self._loads[topic] = load

    def drop(self, topic: TopicName) -> None:
        """Forget a topic that has moved away."""
        self._loads.pop(topic, None)

    def record(self) -> LoadsRecord:
        heavy = sorted(((load, topic) for topic, load in self._loads.items() if load >= LISTED_MIN), reverse=True)
        listed = {str(topic): round(load, 2) for load, topic in heavy[:LISTED_MAX]}
        rest = math.fsum(self._loads.values()) - math.fsum(listed.values())
        return LoadsRecord(listed, round(max(0.0, rest), 2))


def differs(before: LoadsRecord | None, now: LoadsRecord) -> bool:
    """Whether the loads should be announced."""
    if before is None:
        return True
    old, new = (math.fsum(one.topics.values()) + one.rest for one in (before, now))
    if abs(new - old) >= max(TOPIC_LOAD, CHANGED_PART * old):
        return True
    return any(
        abs(now.topics.get(topic, 0.0) - before.topics.get(topic, 0.0)) >= TOPIC_LOAD
        for topic in before.topics.keys() | now.topics.keys()
    )

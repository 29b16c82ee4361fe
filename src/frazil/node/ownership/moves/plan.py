"""Plans where topics go: pure functions of loads."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field

from frazil.core.cluster import Balance, BrokerInfo, BrokerState, PlannedMove
from frazil.core.names import TopicName

_EVEN = 1e-9


def place(
    topics: Iterable[TopicName], targets: Collection[BrokerInfo], load_of: Callable[[TopicName], float]
) -> dict[TopicName, str]:
    """Give each topic to the broker that has the least load by then; heavy topics first. Empty without a broker."""
    if not targets:
        return {}
    heap = [(one.load, one.broker_id) for one in targets]
    heapq.heapify(heap)
    placed: dict[TopicName, str] = {}
    for negative, topic in sorted((-load_of(one), one) for one in topics):
        load, broker_id = heap[0]
        heapq.heapreplace(heap, (load - negative, broker_id))
        placed[topic] = broker_id
    return placed


def least_loaded(targets: Iterable[BrokerInfo]) -> BrokerInfo | None:
    return min(targets, key=lambda one: (one.load, one.broker_id), default=None)


@dataclass(slots=True)
class _Loaded:
    """A broker while moves are planned, with its topics sorted by load."""

    load: float
    topics: list[tuple[float, TopicName]] = field(default_factory=list)

    def best_for(self, gap: float) -> tuple[float, TopicName] | None:
        """Return the topic whose move evens out a gap of two loads best; None if any would not make it smaller.

        That is the one nearest to half of the gap. A topic as heavy as the gap would only turn it around.
        """
        at = bisect.bisect_left(self.topics, (gap / 2,))
        near = [self.topics[one] for one in (at - 1, at) if 0 <= one < len(self.topics)]
        near = [one for one in near if one[0] < gap - _EVEN]
        return min(near, key=lambda one: (abs(one[0] - gap / 2), one), default=None)


def rebalance(
    balance: Balance,
    topics_of: Callable[[str], Collection[TopicName]],
    load_of: Callable[[TopicName], float],
    *,
    threshold: float,
    moves_max: int,
    is_target: Callable[[BrokerInfo], bool] = lambda _: True,
    fixed: Collection[TopicName] = (),
) -> list[PlannedMove]:
    """Plan moves between active brokers until the coefficient of variation is at most half the threshold.

    Nothing moves up to the threshold, so that small changes of traffic move nothing. `fixed` topics stay.
    """
    if balance.variation <= threshold:
        return []
    active = [one for one in balance.brokers if one.state is BrokerState.ACTIVE]
    targets = {one.broker_id for one in active if is_target(one)}
    loaded = {one.broker_id: _Loaded(one.load) for one in active}
    for broker_id, one in loaded.items():
        one.topics = sorted((load_of(topic), topic) for topic in topics_of(broker_id) if topic not in fixed)
    moves: list[PlannedMove] = []
    while len(moves) < moves_max and _variation(loaded) > threshold / 2:
        move = _next_move(loaded, targets)
        if move is None:
            break
        moves.append(move)
    return moves


def _next_move(loaded: Mapping[str, _Loaded], targets: Collection[str]) -> PlannedMove | None:
    """Plan the best move from the most loaded broker that has one to the least loaded; None if none is left."""
    if not targets:
        return None
    to = min(targets, key=lambda one: (loaded[one].load, one))
    for source in sorted(loaded, key=lambda one: (-loaded[one].load, one)):
        gap = loaded[source].load - loaded[to].load
        if gap <= _EVEN:
            return None
        best = loaded[source].best_for(gap)
        if best is not None:
            load, topic = best
            loaded[source].topics.remove(best)
            loaded[source].load -= load
            loaded[to].load += load
            reason = f"{source} has {gap:.1f} more load than {to}"
            return PlannedMove(topic, source, to, load, reason)
    return None


def _variation(loaded: Mapping[str, _Loaded]) -> float:
    return Balance(tuple(BrokerInfo(one, {}, load=loaded[one].load) for one in loaded)).variation


def next_drained(topics: Collection[TopicName], moving: Collection[TopicName], parallel_max: int) -> list[TopicName]:
    """Return the topics of a draining broker that are to be moved now, beside those that are moving already."""
    free = parallel_max - sum(1 for topic in topics if topic in moving)
    if free <= 0:
        return []
    return heapq.nsmallest(free, (topic for topic in topics if topic not in moving))

"""The limit of a tenant's tables, for topics that its senders create by sending to them.

Each topic in a namespace of the tenant is a table, and one of requests is all the tables that it feeds. Topics that are
being created count too, so callers at once do not exceed the limit. Brokers of a cluster count what each knows of.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator

from frazil.core.errors import QuotaExceeded
from frazil.core.names import TopicName
from frazil.node.telemetry.scopes import is_of
from frazil.telemetry.schemas import tables_of
from frazil.telemetry.signals import Signal

RETRY_AFTER_MS = 60_000
_TABLES = {signal.value: len(tables_of(signal)) for signal in Signal}


class TableLimit:
    """Thread-safe."""

    def __init__(self, topics: Callable[[], Collection[TopicName]]) -> None:
        """`topics` returns all that there are, of any tenant."""
        self._topics = topics
        self._turn = threading.Lock()
        """Held while topics are counted, so that the next caller counts this one."""
        self._guard = threading.Lock()
        """Never held for long."""
        self._creating: Counter[TopicName] = Counter()

    @contextlib.contextmanager
    def place(self, tenant: str, topic: TopicName) -> Iterator[TablePlace]:
        """Return the place of a topic that is to be created. It is given back at the end, also if a thread takes it
        after that, for a caller that has left meanwhile."""
        place = TablePlace(self, tenant, topic)
        try:
            yield place
        finally:
            with self._guard:
                place.is_left = True
                self._creating -= Counter((topic,) if place.is_taken else ())

    def take(self, place: TablePlace, limit: int | None) -> None:
        with self._turn:
            with self._guard:
                known = set(self._creating)
            known.update(() if limit is None else self._topics())
            with self._guard:
                if limit is not None:
                    _check(place, known | set(self._creating), limit)
                if not place.is_left:
                    place.is_taken = True
                    self._creating[place.topic] += 1


class TablePlace:
    """Room for the tables of one topic."""

    def __init__(self, limits: TableLimit, tenant: str, topic: TopicName) -> None:
        self._limits = limits
        self.tenant = tenant
        self.topic = topic
        self.is_taken = self.is_left = False

    def take(self, limit: int | None) -> None:
        """Take it; raises `QuotaExceeded` if there is no room. Blocks while the topics are counted."""
        self._limits.take(self, limit)


def _check(place: TablePlace, known: Collection[TopicName], limit: int) -> None:
    own = {name.partition_of()[0] for name in known if is_of(place.tenant, name)}
    if place.topic not in own and sum(map(_tables, (*own, place.topic))) > limit:
        raise QuotaExceeded(f"tenant:{place.tenant}", "tables", limit, RETRY_AFTER_MS)


def _tables(topic: TopicName) -> int:
    return _TABLES.get(topic.topic, 1)

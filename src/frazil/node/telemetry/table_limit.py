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
        self._guard = threading.Lock()
        self._creating: Counter[TopicName] = Counter()

    @contextlib.contextmanager
    def creating(self, tenant: str, topic: TopicName, limit: int | None) -> Iterator[None]:
        """Hold the place of a topic that is to be created; raises `QuotaExceeded` if there is none."""
        with self._guard:
            if limit is not None:
                self._check(tenant, topic, limit)
            self._creating[topic] += 1
        try:
            yield
        finally:
            with self._guard:
                self._creating -= Counter((topic,))

    def _check(self, tenant: str, topic: TopicName, limit: int) -> None:
        known = {name.partition_of()[0] for name in (*self._topics(), *self._creating) if is_of(tenant, name)}
        if topic not in known and sum(map(_tables, (*known, topic))) > limit:
            raise QuotaExceeded(f"tenant:{tenant}", "tables", limit, RETRY_AFTER_MS)


def _tables(topic: TopicName) -> int:
    return _TABLES.get(topic.topic, 1)

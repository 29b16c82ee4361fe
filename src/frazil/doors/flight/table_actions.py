"""Actions on a table of a tenant, or on a topic, for any Flight client.

action `flush`    {"topic" or "dataset", "table"; "offset", "timeout_ms"}: wait until the table has the rows below
                  `offset`, by default all rows of now; {"offset", "table_end"}
action `stats`    {"topic" or "dataset", "table"}: statistics over all tiers
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from pydantic import Field

from frazil.core import access
from frazil.core.access import Action, Right
from frazil.core.errors import InvalidInput, QuotaExceeded, TryLater
from frazil.core.principal import ANONYMOUS, Principal
from frazil.doors.admission import who
from frazil.doors.calls import Context
from frazil.doors.flight.actions import FlightAction
from frazil.doors.flight.calls import Calls
from frazil.doors.flight.movers import parsed
from frazil.doors.flight.requests import FlightRequest
from frazil.doors.flight.targets import Targets
from frazil.node.access.quotas import RETRY_AFTER_MS
from frazil.node.node import Node
from frazil.node.topics.flush import TableFlushes

BODY_BYTES_MAX = 4096
FLUSHES_MAX, FLUSHES_OF_CALLER_MAX = 64, 8
"""With security on, one caller leaves room for the others."""
TIMEOUT_MS, TIMEOUT_MS_MAX = 30_000, 600_000


class _NamedTable(FlightRequest):
    topic: str | None = Field(None, max_length=1024)
    dataset: str | None = None
    table: str | None = None


class _Flush(_NamedTable):
    offset: int | None = Field(None, ge=0, lt=2**62)
    timeout_ms: int = Field(TIMEOUT_MS, ge=0, le=TIMEOUT_MS_MAX)


class TableActions:
    """The actions by name. Created before the server starts; `flush` is used on its event loop."""

    def __init__(self, node: Node, targets: Targets) -> None:
        self._node = node
        self._targets = targets
        self._flushes = TableFlushes(node.movers(ANONYMOUS).status)
        self._waiting: Counter[str] = Counter()
        self.by_name = {
            "flush": FlightAction(self._flush_rights, None),
            "stats": FlightAction(self._stats_rights, self._stats),
        }

    def close(self) -> None:
        self._flushes.close()

    def _flush_rights(self, body: bytes) -> Sequence[Right]:
        return self._rights(parsed(_Flush, body, "flush", BODY_BYTES_MAX))

    def _stats_rights(self, body: bytes) -> Sequence[Right]:
        return self._rights(parsed(_NamedTable, body, "stats", BODY_BYTES_MAX))

    def _rights(self, asked: _NamedTable) -> Sequence[Right]:
        return (Right(Action.DESCRIBE, access.topic(self._topic_of(asked))),)

    def _topic_of(self, asked: _NamedTable) -> str:
        return self._targets.named(asked.topic, asked.dataset, asked.table, Action.DESCRIBE)

    def _stats(self, caller: Principal, body: bytes) -> bytes:
        topic = self._topic_of(parsed(_NamedTable, body, "stats", BODY_BYTES_MAX))
        stats = self._node.topic(caller, topic, Action.DESCRIBE).stats()
        return json.dumps(stats.as_dict()).encode()

    async def flush(self, calls: Calls, body: bytes, context: Context) -> bytes:
        asked = parsed(_Flush, body, "flush", BODY_BYTES_MAX)
        topic = self._topic_of(asked)
        rights = calls.rights(context, topic, Right(Action.DESCRIBE, access.topic(topic)))
        rights.check()
        ended, table_end = asyncio.Event(), -1
        with self._one_more(calls), calls.stream(), rights.open(ended.set), calls.until_end(ended.set):
            log = (await calls.blocking(self._node.topic, rights.who, topic, Action.DESCRIBE)).log
            end = await calls.blocking(log.flush)
            offset = end if asked.offset is None else asked.offset
            if offset > end:
                raise InvalidInput(f"offset: {topic} ends at {end}, before {offset}", field="offset", end=end)
            table_end = await self._flushes.until(log, offset, asked.timeout_ms / 1_000, ended)
        calls.check_open()
        return json.dumps({"offset": offset, "table_end": table_end}).encode()

    @contextmanager
    def _one_more(self, calls: Calls) -> Iterator[None]:
        name = calls.account(who())
        if calls.gate.is_on and self._waiting[name] >= FLUSHES_OF_CALLER_MAX:
            raise QuotaExceeded(name, "concurrent flushes", FLUSHES_OF_CALLER_MAX, RETRY_AFTER_MS)
        if self._waiting.total() >= FLUSHES_MAX:
            raise TryLater(f"{FLUSHES_MAX} calls wait for tables; try again later", limit=FLUSHES_MAX)
        self._waiting[name] += 1
        try:
            yield
        finally:
            self._waiting -= Counter((name,))

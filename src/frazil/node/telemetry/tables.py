"""Record batches into a tenant's tables: the first one creates the table, later ones may add columns and widen types.

A table is a typed topic with a schema that its writers extend. Nothing is created or changed for a stream before one of
its batches was found to fit. Two writers may extend a table at once: each change is of what is stored then, and neither
takes a column away. Rows of a writer that lacks a column have nulls there, and those of a narrower type are widened.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from frazil.core import access
from frazil.core.access import Action
from frazil.core.errors import FrazilError, SchemaMismatch, TopicDiffers, TopicNotFound
from frazil.core.names import TopicName
from frazil.core.principal import LOCAL, Principal
from frazil.core.rows.evolution import Fit, evolved, plain_schema
from frazil.core.sequences import Sent
from frazil.log.topic import Topic
from frazil.log.write.group import Notify
from frazil.log.write.publishing import check_safe, typed_rows
from frazil.node.publish.publishers import BatchPublisher
from frazil.node.request_ids import peer_of_call
from frazil.node.telemetry.creating import create_topic
from frazil.node.telemetry.places import TenantPlace

if TYPE_CHECKING:
    from frazil.node.node import Node
    from frazil.node.publish.schema_checks import Judged
    from frazil.node.publish.traces import Rows


class TableTarget(NamedTuple):
    """A table of a tenant, and the topic that holds its rows."""

    place: TenantPlace
    topic: TopicName


class TablePublisher:
    """Publishes batches of one schema to one table, as `BatchPublisher` does; `ready` before each.

    Created and used on one event loop, but for `begin_many`, which any thread may call.
    """

    def __init__(self, node: Node, who: Principal, target: TableTarget, schema: pa.Schema) -> None:
        """`schema` is what the writer says; `look` checks it."""
        self._node = node
        self._telemetry = node.telemetry(who)
        self._who = who
        self._target = target
        self._schema = schema
        self._is_admitted = False
        self._inner: BatchPublisher | None = None
        self._fit: Fit | None = None
        """How batches become rows of the columns that the topic had last."""

    async def look(self) -> None:
        """Check the schema, and look the table up. Changes nothing. Call it once, before anything else.

        Raises `SchemaMismatch` for columns that no table can hold, or that do not go with those of this one.
        """
        await asyncio.to_thread(self._look)

    def _look(self) -> None:
        """In a thread: to check a schema of many columns takes long."""
        self._schema = plain_schema(self._schema)
        with contextlib.suppress(TopicNotFound):
            self._inner = self._node.publisher(self._who, str(self._target.topic))
            evolved(self._own(self._inner.topic), self._schema)

    def count(self, size_bytes: int) -> None:
        """Count a batch of a caller that is no member of the tenant; the gate counts those of members."""
        if self._node.tenant_parts is not None:
            self._node.tenant_parts.quotas.export(self._who, self._target.place.tenant, size_bytes)

    async def ready(self, batch: pa.RecordBatch) -> None:
        """Bring the table to where it can hold the batch: created, and with all its columns.

        Raises the reason why it cannot hold it: then nothing has changed.
        """
        topic = None if self._inner is None else self._inner.topic
        self._telemetry.check_there(self._target.place.tenant)
        if topic is not None and self._is_admitted and self._fit is not None and self._fit.own is topic.schema:
            return
        if topic is not None:
            await asyncio.to_thread(self._check_may_extend, topic)
        if not self._is_admitted:
            await asyncio.to_thread(self._check, batch, self._schema if topic is None else self._own(topic))
        if topic is None:
            await create_topic(self._node, self._who, *self._target, self._schema, self._telemetry.admit)
            self._inner = await asyncio.to_thread(self._node.publisher, self._who, str(self._target.topic))
            topic = self._inner.topic
        elif not self._is_admitted:
            await asyncio.to_thread(self._telemetry.admit, self._target.place)
        self._is_admitted = True
        self._fit = await asyncio.to_thread(self._extended, topic)

    def begin_many(self, batch: pa.RecordBatch, notify: Notify, token: object, sent: Sent | None = None) -> int:
        """Queue a batch in the form that the topic has now, which another writer may change at any time."""
        assert self._inner is not None, "the batch was not checked"
        assert self._fit is not None
        topic, fit = self._inner.topic, self._fit
        while True:
            if fit.own is not topic.schema:
                fit = Fit(self._schema, self._own(topic))
            if fit.needs_cast:
                check_safe(batch)
            try:
                return self._inner.begin_many(fit.rows(batch), notify, token, sent)
            except SchemaMismatch:
                if fit.own is topic.schema:
                    raise

    # --- as `BatchPublisher` has them

    @property
    def is_traced(self) -> bool:
        return self._inner is not None and self._inner.is_traced

    def now_us(self) -> int:
        return self._node.clock.now_us()

    async def check(self, messages: Callable[[], Iterable[Judged]]) -> None:
        """A table has no schema in the registry."""

    def published(self, rows: Rows, first_offset: int, began_us: int, given: Sequence[tuple[int, str]]) -> None:
        if self._inner is not None:
            self._inner.published(rows, first_offset, began_us, given)

    def refused(self, error: FrazilError, began_us: int, given: Sequence[tuple[int, str]]) -> None:
        if self._inner is not None:
            self._inner.refused(error, began_us, given)

    # --- steps

    def _own(self, topic: Topic) -> pa.Schema:
        if topic.schema is None:
            raise TopicDiffers(topic.name, "it is a topic of messages, not a table; put to it by the path of the topic")
        return topic.schema

    def _check(self, batch: pa.RecordBatch, own: pa.Schema) -> None:
        """Check all that refuses a batch, before anything is changed for it."""
        settings, parts = self._node.settings.wal, self._node.tenant_parts
        wanted = evolved(own, self._schema)
        check_safe(batch)
        typed_rows(settings, Fit(self._schema, wanted).rows(batch), wanted)
        if parts is not None and self._who is not LOCAL:
            parts.quotas.check_stored(self._target.place.tenant)

    def _check_may_extend(self, topic: Topic) -> None:
        """Raise `PermissionDenied` if the table lacks columns and the caller may neither create nor alter it."""
        own, gate, resource = self._own(topic), self._node.gate, access.topic(topic.name)
        if evolved(own, self._schema) is not own and not gate.allows(self._who, Action.CREATE, resource):
            gate.check(self._who, Action.ALTER, resource, peer_of_call())

    def _extended(self, topic: Topic) -> Fit:
        """Add the missing columns to those that are there now, and return how batches fit into all of them."""
        while True:
            own = self._own(topic)
            wanted = evolved(own, self._schema)
            if wanted is own:
                return Fit(self._schema, own)
            try:
                self._node.topics(self._who).change_schema(topic.name, wanted)
                self._node.record_change(
                    self._who, Action.ALTER, f"topic {topic.name}", "columns were added or widened"
                )
            except SchemaMismatch:
                if topic.schema is own:  # else another writer was faster
                    raise

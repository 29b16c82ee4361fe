"""Publishers: they check rows by the topic's schema, append them, and trace them.

A door gets a publisher from the Node once and uses it for each message or batch. So no door can leave out the check or
the trace, and nothing is looked up again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from frazil.broker.topics.topic import BrokerTopic
from frazil.core.errors import FrazilError
from frazil.core.offsets import OffsetRange
from frazil.core.principal import ANONYMOUS, LOCAL, Principal
from frazil.core.put_notes import FewRow
from frazil.core.sequences import Sent
from frazil.log.topic import Topic
from frazil.log.write.group import Notify, call_on, resolve_futures
from frazil.log.write.publishing import Outgoing, check_safe, message_rows
from frazil.node.request_ids import current

if TYPE_CHECKING:
    from frazil.broker.counts import BrokerCounts
    from frazil.broker.topics.topic import OutgoingMessage as BrokerMessage
    from frazil.node.access.topic_quotas.stored import StoredQuota
    from frazil.node.publish.schema_checks import Judged, SchemaChecks
    from frazil.node.publish.traces import Rows, Traces
    from frazil.node.telemetry.quotas import Charge, TenantQuotas

    Append = Callable[[BrokerTopic, BrokerMessage], Awaitable[int]]


class MessagePublisher:
    """Publishes single messages to any topic of the broker, on the broker's event loop."""

    __slots__ = ("_append", "_checks", "_counts", "_stored", "tenants")

    def __init__(
        self, checks: SchemaChecks, counts: BrokerCounts, traces: Traces | None, stored: StoredQuota | None = None
    ) -> None:
        self._checks = checks
        self._counts = counts
        self._stored = stored
        self.tenants: TenantQuotas | None = None
        """Quotas of the tenants whose namespaces the topics are in; None while telemetry is off."""
        self._append: Append = BrokerTopic.publish if traces is None else traces.publish

    async def publish(self, topic: BrokerTopic, message: BrokerMessage, who: Principal = ANONYMOUS) -> int:
        """Return the offset once the message is durable; raises `MessageRefused` if the topic enforces its schema, and
        `QuotaExceeded` if the topic's creator, or its tenant, may store no more."""
        origin = message.origin
        if self._stored is not None:
            await self._charge(self._stored, topic, len(message.payload), who)
        if self.tenants is not None and topic.reliable and who is not LOCAL:
            self.tenants.store(topic.name, len(message.payload))
        await self._checks.check(topic.label, (message.payload, origin.schema_id, origin.schema_version))
        offset = await self._append(topic, message)
        self._counts.sent(len(message.payload))
        return offset

    async def learn(self, topic: BrokerTopic) -> None:
        """Look up the schema of a topic that will be published to: its first message need not wait for the store."""
        await self._checks.learn(topic.label)

    async def _charge(self, stored: StoredQuota, topic: BrokerTopic, size_bytes: int, who: Principal) -> None:
        owner = stored.owner(topic.name, topic.is_of_log) if topic.reliable and who is not LOCAL else None
        if owner is not None:
            account = stored.known(owner)
            if account is None:
                account = await asyncio.to_thread(stored.account, owner)
            stored.check(account, who, topic.label)
            stored.add(account, size_bytes)  # before it is appended: messages in flight count


class BatchPublisher:
    """Publishes batches to one topic: `check`, then `begin_many` or `begin_few`, then `published` or `refused`.

    The steps are separate because a stream has many batches in flight.
    """

    __slots__ = ("_charge", "_checks", "_traces", "topic")

    def __init__(
        self, topic: Topic, checks: SchemaChecks | None, traces: Traces | None, charge: Charge | None = None
    ) -> None:
        self.topic = topic
        self._charge = charge
        self._checks = checks if topic.schema is None else None  # a typed topic has its columns
        self._traces = traces

    @property
    def is_traced(self) -> bool:
        """Whether `published` needs the rows."""
        return self._traces is not None

    def now_us(self) -> int:
        """Return the arrival time of a batch, for its trace; 0 if nothing is traced."""
        return 0 if self._traces is None else self._traces.now_us()

    async def publish(
        self, rows: Iterable[bytes | str | Outgoing] | pa.RecordBatch, sent: Sent | None = None
    ) -> OffsetRange:
        """Run all steps for one batch, and return once it is durable. It is traced as part of the caller's span."""
        began_us, given = self.now_us(), _trace_of_call()
        try:
            batch = rows if isinstance(rows, pa.RecordBatch) else self._message_rows(rows)
            await self.check(lambda: judged(batch))
            loop = asyncio.get_running_loop()
            future: asyncio.Future[int] = loop.create_future()
            count = self.begin_many(batch, lambda part: call_on(loop, resolve_futures, part), future, sent)
            first = await future
        except FrazilError as error:
            self.refused(error, began_us, given)
            raise
        self.published(batch, first, began_us, given)
        return OffsetRange(first, first + count)

    async def check(self, messages: Callable[[], Iterable[Judged]]) -> None:
        """Check by the topic's registry schema, if it has one. Only then `messages` is called, in a thread."""
        checks, name = self._checks, self.topic.name
        if checks is not None and not checks.passes_all(name):
            await checks.check_all(name, messages)

    def begin_many(self, batch: pa.RecordBatch, notify: Notify, token: object, sent: Sent | None = None) -> int:
        """See `Topic.begin_publish_many`; raises `QuotaExceeded` if the topic's creator may store no more."""
        if self._charge is None:
            return self.topic.begin_publish_many(batch, notify, token, sent)
        self._charge.check()
        count = self.topic.begin_publish_many(batch, notify, token, sent)
        self._charge.add(batch.nbytes)
        return count

    def begin_few(self, rows: Iterable[FewRow], time_us: int, notify: Notify, token: object, sent: Sent) -> None:
        """See `Topic.begin_publish_few`; raises `QuotaExceeded` if the topic's creator may store no more."""
        if self._charge is None:
            self.topic.begin_publish_few(rows, time_us, notify, token, sent)
            return
        self._charge.check()
        given = list(rows)
        self.topic.begin_publish_few(given, time_us, notify, token, sent)
        self._charge.add(sum(len(row.payload) for row in given))

    def published(self, rows: Rows, first_offset: int, began_us: int, given: Sequence[tuple[int, str]]) -> None:
        """Trace rows that are durable now. `given` are spans of callers, by the first row of each."""
        if self._traces is not None:
            self._traces.published_batch(self.topic.log, rows, first_offset, began_us, given)

    def refused(self, error: FrazilError, began_us: int, given: Sequence[tuple[int, str]]) -> None:
        if self._traces is not None:
            self._traces.refused_batch(self.topic.log, error, began_us, given)

    def _message_rows(self, messages: Iterable[bytes | str | Outgoing]) -> pa.RecordBatch:
        self.topic.check_is_message_topic()
        context = self.topic.log.context
        return message_rows(context.settings, messages, context.clock.now_us())[0]


def _trace_of_call() -> Sequence[tuple[int, str]]:
    request = current()
    return () if request is None or request.trace_parent is None else ((0, request.trace_parent),)


def judged(batch: pa.RecordBatch) -> Iterable[Judged]:
    """Return payload, schema id and schema version of each message. The log itself refuses batches without messages."""
    check_safe(batch)
    names = batch.schema.names
    wanted = ("_payload", "_schema_id", "_schema_version")
    columns = [batch.column(name).to_pylist() if name in names else [None] * len(batch) for name in wanted]
    return ((payload or b"", schema_id, version) for payload, schema_id, version in zip(*columns, strict=True))

"""The Node: the interface to a data folder that this process owns, shared by all doors.

    publish        append rows to a topic, with schema check and traces
    read           read rows of a topic from any position, across all tiers
    subscribe      register a consumer of a subscription
    create_topic, describe_topic, delete_topic
    query          run SQL over topics and tables, in a separate process
    verify         prove that every acknowledged row is in exactly one place, as a job
    stats          return statistics of the log and its topics

Every public method takes the caller, a `Principal`, as its first argument. Further methods return a part that only some
doors need: `publisher`, `messages`, `topic`, `topics`, `broker`, `admin`, `dead_letters`, `registry`, `schemas`,
`namespaces`, `tables`, `movers`, `ownership`, `health`, `jobs`, `keys`, `roles`, `bindings`, `telemetry`.

A Node is open once it is created: `frazil.open` returns its embedded interface. `await start()` opens the parts that
doors need: metadata store, broker, schema registry. Call it and `await stop()` on one event loop.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa

from frazil.core import access
from frazil.core.access import Action, Resource
from frazil.core.clock import Clock, SystemClock
from frazil.core.disk import Disk
from frazil.core.errors import InvalidInput, InvalidSettings, MetadataInUse, SecurityOff, TryLater
from frazil.core.extras import needs
from frazil.core.names import TopicName
from frazil.core.offsets import OffsetRange
from frazil.core.partitions import topic_or_partitions
from frazil.core.principal import LOCAL, Principal
from frazil.core.sequences import Sent
from frazil.core.settings import RetentionSettings, Settings, settings_of
from frazil.log.info import LogInfo, LogList
from frazil.log.read.positions import Start
from frazil.log.read.reader import BatchReader
from frazil.log.storage import Storage
from frazil.log.topic import Topic
from frazil.node.access.gate import Gate, OpenGate, has_lost
from frazil.node.access.topic_quotas.parts import NO_QUOTAS
from frazil.node.health.stats import BrokerStats, NodeStats, broker_stats, node_stats
from frazil.node.jobs.verbs import Command
from frazil.node.movers.last_report import LastReport
from frazil.node.movers.lease import this_host
from frazil.node.movers.movers import Movers
from frazil.node.opening import open_to_move, open_topics, own_telemetry_of, traces_of
from frazil.node.ownership.ownership import Ownership
from frazil.node.ownership.single_owner import SingleOwner
from frazil.node.parts import NodeParts
from frazil.node.query.process import SqlProcess
from frazil.node.request_ids import peer_of_call

if TYPE_CHECKING:  # imported on first use: the embedded interface does not need these
    from frazil.broker.admin import BrokerAdmin
    from frazil.broker.broker import Broker
    from frazil.broker.delivery.assignment import Kind
    from frazil.log.write.publishing import Outgoing
    from frazil.node.access.grants import BindingAdmin, KeyAdmin, RoleAdmin
    from frazil.node.access.opening import AccessParts
    from frazil.node.broker_parts import BrokerParts, OnLost
    from frazil.node.health.readiness import NodeHealth
    from frazil.node.jobs.jobs import AdminJobs, Job
    from frazil.node.movers.status import PipelineProgress
    from frazil.node.publish.publishers import BatchPublisher, MessagePublisher
    from frazil.node.publish.traces import Traces
    from frazil.node.telemetry.opening import TenantParts
    from frazil.node.telemetry.own.exporter import OwnTelemetry
    from frazil.node.telemetry.quotas import Charge
    from frazil.node.telemetry.telemetry import Telemetry
    from frazil.node.tiers.cluster_logs import ForwardedCaller
    from frazil.node.topics.dead_letters import DeadLetterTopics
    from frazil.node.topics.topics import Topics


def _ignore(_: MetadataInUse) -> None:
    pass


def open_node(
    where: str | os.PathLike[str] | Settings | Mapping[str, Any] | None,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
    moves: bool = False,
    serves: bool = False,
    command: Command | None = None,
) -> Node:
    """Own a data folder, which is created if it does not exist; see `frazil.open` for `where`.

    `moves`: retention keeps rows until they are in their tables. `serves`: open a broker and traces, by the settings.
    `command` returns the command line of a verb on the same folder.
    """
    settings = Settings.of_folder(None) if where is None else settings_of(where)
    status = LastReport(settings)
    storage = open_to_move(settings, moves=moves, disk=disk, clock=clock, status=status, serves=serves)
    try:
        own = own_telemetry_of(settings, clock or SystemClock()) if serves else None
        traces = traces_of(settings, clock or SystemClock(), own) if serves else None
    except BaseException:
        storage.close()
        raise
    has_broker = serves and settings.broker.enabled
    return Node(
        storage, clock=clock, has_broker=has_broker, traces=traces, command=command, status=status, own_telemetry=own
    )


def open_embedded(
    where: str | os.PathLike[str] | Settings | Mapping[str, Any] | None,
    *,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Storage:
    """Open a data folder, which is created if it does not exist; `None` keeps everything in memory.

    `where` is the folder, a settings file (`.yaml`), an equivalent mapping, or a `Settings`.
    Retention removes only what the guards allow; see `node.retention`.
    """
    # Closing the storage is enough: this Node holds nothing else.
    return Node(open_topics(where, disk=disk, clock=clock)).storage


class Node(NodeParts):
    """A data folder with its parts. Create it anywhere; start it, use it by doors and stop it on one event loop."""

    def __init__(
        self,
        storage: Storage,
        *,
        clock: Clock | None = None,
        has_broker: bool = False,
        traces: Traces | None = None,
        command: Command | None = None,
        status: LastReport | None = None,
        own_telemetry: OwnTelemetry | None = None,
    ) -> None:
        """`has_broker`: `start` opens a broker. `status` is the mover's last report, which the storage reads too."""
        self.storage = storage
        """The embedded interface, for this process itself. Doors use the methods below."""
        self.settings = storage.settings
        self.clock = clock or SystemClock()
        self.has_broker = has_broker
        self.addresses: dict[str, str] = {}
        """Addresses of the open doors, by door name."""
        self.gate: Gate = OpenGate()
        """Identifies the callers of doors and checks their rights. With security on, `start` opens it."""
        self._traces = traces
        self._command = command
        self._parts: BrokerParts | None = None
        self._access: AccessParts | None = None
        self._quotas = NO_QUOTAS
        self._opened = AsyncExitStack()
        self._messages: MessagePublisher | None = None
        self._movers = Movers(self.settings, self.clock, None if traces is None else traces.reported, status)
        self._logs = LogList(storage)
        self._topics: Topics | None = None
        self._ownership: Ownership = SingleOwner(this_host(), self.addresses, storage.names)
        self._health: NodeHealth | None = None
        self._jobs: AdminJobs | None = None
        self._telemetry: Telemetry | None = None
        self.tenant_parts: TenantParts | None = None
        self.own_telemetry = own_telemetry
        """What this process tells of itself, in its own tenant; None unless the settings want it."""

    # --- lifecycle

    async def start(self, on_lost: OnLost = _ignore) -> None:
        """Open the gate and the broker, if the settings want them; a failure leaves nothing open.

        `on_lost` is called if another server takes the metadata over: this process must end.
        """
        async with AsyncExitStack() as opened:
            if self.settings.security.enabled:
                with needs(lambda hint: InvalidSettings(f"security.enabled: {hint}")):
                    from frazil.node.access.opening import access_open
                    from frazil.node.access.topic_quotas.opening import topic_quotas_open
                self._access = await opened.enter_async_context(access_open(self.settings, self.clock))
                self.gate, family = self._access.gate, self.topics(LOCAL).family

                def elsewhere(name: TopicName) -> Mapping[TopicName, str | None]:
                    return self._ownership.elsewhere(name)

                self._quotas = opened.enter_context(
                    topic_quotas_open(self._access, self.storage, family, self.clock, elsewhere)
                )
            if self.has_broker:
                from frazil.node.broker_parts import broker_parts_open

                opening = broker_parts_open(self.storage, self.settings, self.clock, on_lost, self.addresses)
                self.use(await opened.enter_async_context(opening))
            if self.settings.telemetry.enabled:
                from frazil.node.telemetry.opening import tenants_open

                self.tenant_parts = await opened.enter_async_context(tenants_open(self, self._access))
                if self._messages is not None:
                    self._messages.tenants = self.tenant_parts.quotas
            topic = self.settings.security.audit.topic
            if self._access is not None and topic is not None:
                from frazil.node.access.audit_log.topic import audit_topic_open

                await opened.enter_async_context(audit_topic_open(self, self._access.audit, topic))
            if self.own_telemetry is not None:  # last: it ends first, while everything can still be stored
                await opened.enter_async_context(self.own_telemetry.running(self))
            self._opened = opened.pop_all()

    def use(self, parts: BrokerParts) -> None:
        """Use a broker that is already open. Its opener closes it."""
        from frazil.node.publish.publishers import MessagePublisher

        self._parts = parts
        self._ownership = parts.ownership or self._ownership
        self._messages = MessagePublisher(parts.checks, parts.broker.counts, self._traces, self._quotas.stored)

    async def leave(self) -> None:
        """Give the topics to other brokers of the cluster, within a time, while the doors still answer."""
        if self._parts is not None and self._parts.ownership is not None:
            await self._parts.ownership.leave()

    def end_streams(self) -> None:
        """Refuse new work for the broker; calls in progress are still answered. Stop the doors afterwards."""
        if self._parts is not None:
            self._parts.broker.end_streams()

    async def stop(self) -> None:
        """Store cursors, close the broker and then the gate. The doors must have stopped."""
        await self._opened.aclose()

    def close(self) -> None:
        """Send the last spans, finish queued work, and release the folder."""
        try:
            if self._traces is not None:
                self._traces.close()
        finally:
            self.storage.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- rights

    def must(self, who: Principal, action: Action, resource: Resource) -> None:
        """Raise `PermissionDenied` if the caller may not. A door has checked before: then the audit log has it."""
        if not self.gate.allows(who, action, resource):
            self.gate.check(who, action, resource, peer_of_call())

    def record_change(self, who: Principal, action: Action, what: str, how: str) -> None:
        """Write a change to the audit log whose right does not name it: that of a key, a broker, the place of a topic.

        Its line follows that of the right, with the same request id.
        """
        if self._access is not None:
            self._access.audit.record(who, action, what, True, peer_of_call(), how)

    def owner(self, who: Principal) -> str | None:
        """Return the owner of producers and consumers that the caller creates; None while security is off."""
        return who.name if self.gate.is_on else None

    def access_parts(self, who: Principal) -> AccessParts:  # noqa: ARG002 - doors decide what they show to whom
        """Return the open gate with all its parts, for doors themselves; raises `SecurityOff`."""
        if not self.settings.security.enabled:
            raise SecurityOff
        if self._access is None:
            raise TryLater("the gate is not open yet; try again")
        return self._access

    def keys(self, who: Principal) -> KeyAdmin:
        """Return the interface to API keys. All its calls block."""
        return self._granting(who).keys.telling(partial(self.record_change, who, Action.GRANT))

    def roles(self, who: Principal) -> RoleAdmin:
        """Return the interface to roles. All its calls block."""
        return self._granting(who).roles.telling(partial(self.record_change, who, Action.GRANT))

    def bindings(self, who: Principal) -> BindingAdmin:
        """Return the interface to bindings of roles to principals. All its calls block."""
        return self._granting(who).bindings.telling(partial(self.record_change, who, Action.GRANT))

    def _granting(self, who: Principal) -> AccessParts:
        parts = self.access_parts(who)
        self.must(who, Action.GRANT, access.SERVER)
        return parts

    # --- rows

    async def publish(
        self,
        who: Principal,
        topic: str,
        rows: Iterable[bytes | str | Outgoing] | pa.RecordBatch,
        sent: Sent | None = None,
    ) -> OffsetRange:
        """Append rows to a topic, all or none, and return their offsets once they are durable. Raises `MessageRefused`
        if the topic enforces its schema. `sent` makes a retry idempotent."""
        self.must(who, Action.PRODUCE, access.topic(topic))
        publisher = await asyncio.to_thread(self.publisher, who, topic)
        return await publisher.publish(rows, sent)

    def publisher(self, who: Principal, topic: str) -> BatchPublisher:
        """Return a publisher of batches to one topic, with schema checks and traces. Reuse it for each batch."""
        from frazil.node.publish.publishers import BatchPublisher

        found = self.topic(who, topic, Action.PRODUCE)
        stored = self._quotas.stored
        charge: Charge | None = None if stored is None else stored.charge(who, found.log)
        if self.tenant_parts is not None and who is not LOCAL:
            charge = self.tenant_parts.quotas.charge(found.log.name, charge)
        return BatchPublisher(found, None if self._parts is None else self._parts.checks, self._traces, charge)

    def messages(self, who: Principal) -> MessagePublisher:
        """Return a publisher of single messages to topics of the broker, with schema checks and traces."""
        self._broker_parts(who)
        assert self._messages is not None
        return self._messages

    def read(
        self, who: Principal, topic: str, position: Start = "earliest", *, end: int | None = None, follow: bool = False
    ) -> BatchReader:
        """Read Arrow batches from a position up to `end`, by default the current end; `follow` adds later ones."""
        return self.topic(who, topic).read_batches(position, end=end, follow=follow)

    async def subscribe(
        self,
        who: Principal,
        topic: str,
        subscription: str,
        kind: Kind,
        consumer: str,
        key_filters: Sequence[str] = (),
    ) -> int:
        """Register a consumer, or find a known one, and return the id by which a door connects it."""
        from frazil.broker.clients import Caller

        resource = access.subscription(topic, subscription)
        self.must(who, Action.CONSUME, access.topic(topic))
        self.must(who, Action.CONSUME, resource)
        self._must_own(TopicName.parse(topic))
        caller = Caller(self.owner(who), partial(has_lost, self.gate, self.settings, Action.CONSUME, resource))
        return await self.broker(who).subscribe(topic, subscription, kind, consumer, key_filters, caller)

    # --- topics

    def topics(self, who: Principal) -> Topics:  # noqa: ARG002 - every caller may do everything
        """Return the interface to create, change, list and delete topics. All its calls block."""
        if self._topics is None:
            from frazil.node.topics.topics import Topics

            self._topics = Topics(self.storage, self._broker_or_none, self._movers.status, lambda: self._quotas.claims)
        return self._topics

    def topic(self, who: Principal, name: str, action: Action = Action.READ) -> Topic:
        """Return a topic of the log, for the given action. Blocks."""
        self.must(who, action, access.topic(name))
        self._must_own(TopicName.parse(name))
        return self.topics(who).open(name, create=False)

    def topic_names(self, who: Principal) -> list[str]:
        """Return the sorted names of all topics of the log that the caller may know of. Blocks."""
        names = self.storage.topics()
        if not self.gate.is_on:
            return names
        return [name for name in names if self.gate.allows(who, Action.DESCRIBE, access.topic(name))]

    async def create_topic(
        self,
        who: Principal,
        topic: TopicName,
        *,
        partitions: int | None = None,
        schema: pa.Schema | None = None,
        reliable: bool = True,
        retention: RetentionSettings | None = None,
        ack: str | None = None,
        also: Mapping[str, bytes] | None = None,
    ) -> list[TopicName]:
        """Create a topic, or all its partitions: all or none. With `schema` it is a typed topic.

        `also` are records of the metadata store that are stored atomically with it.
        """
        self.must(who, Action.CREATE, access.topic(str(topic)))
        topics = self.topics(who)
        return await topics.run(
            topics.create,
            topic,
            partitions=partitions,
            schema=schema,
            reliable=reliable,
            retention=retention,
            ack=ack,
            also=also,
            by=who,
        )

    def describe_topic(self, who: Principal, topic: TopicName) -> dict[str, Any]:
        """Describe a topic, its log, its table and its users; or the sums of its partitions. Blocks."""
        self.must(who, Action.DESCRIBE, access.topic(str(topic)))
        self._must_own(topic)
        return self.topics(who).describe(topic)

    async def delete_topic(self, who: Principal, topic: TopicName, *, force: bool = False) -> None:
        """Delete a topic, its partitions and all their state. Raises `TopicInUse` unless `force` is set."""
        self.must(who, Action.DELETE, access.topic(str(topic)))
        if self._ownership.is_clustered:
            for one in topic_or_partitions(topic, self._ownership.family(topic)):
                self._must_own(one)
        topics = self.topics(who)
        await topics.run(topics.delete, topic, force=force)

    def _must_own(self, topic: TopicName) -> None:
        """Raise `NotOwner` or `TopicUnavailable` unless this broker serves the topic; a server that is alone does."""
        if self._ownership.is_clustered:
            self._ownership.must_own(topic)

    # --- queries

    def query(
        self,
        who: Principal,
        sql: str,
        *,
        snapshot: int | None = None,
        at: str | None = None,
        forwarded: ForwardedCaller | None = None,
    ) -> SqlProcess:
        """Start a query over topics and tables, now or at a snapshot, which opens no other file of this host. What the
        caller may not read does not exist in it. It asks other brokers as `forwarded`, or not at all."""
        if self._command is None:
            raise InvalidInput("sql: queries are answered only by `frazil serve`")
        command = self._command("sql", "--while-stdin", "--arrow", "--json")
        return SqlProcess(command, sql, snapshot, at, self.gate.rules_of(who), forwarded)

    def verify(self, who: Principal, topic: str | None, arguments: Sequence[str] = ()) -> Job:
        """Start a job that verifies one topic or all: it reads log and table completely. Call it on the event loop."""
        return self.jobs(who).verify.start({"topic": topic}, arguments)

    def stats(self, who: Principal) -> NodeStats:  # noqa: ARG002 - every caller may do everything
        """Return statistics of the log and its open topics. Asks no catalog."""
        return node_stats(self.storage)

    def broker_stats(self, who: Principal) -> BrokerStats | None:  # noqa: ARG002 - every caller may do everything
        """Return statistics of producers and subscriptions; None while there is no broker."""
        return None if self._parts is None else broker_stats(self._parts.broker)

    def logs(self, who: Principal) -> list[LogInfo]:  # noqa: ARG002 - every caller may do everything
        """Return each log with its id, its durable end and its files. Logs that cannot be opened are left out."""
        return self._logs.read()

    def pipeline(self, who: Principal, limit: int, after: str | None = None) -> tuple[PipelineProgress, bool]:
        """Return the mover's status and the progress of topics that the caller may know of, and whether there are
        more. Blocks."""
        with needs():
            from frazil.node.movers.status import pipeline_page
        report, logs = self.movers(who).status.read(), self.logs(who)
        if self.gate.is_on:
            logs = [one for one in logs if self.gate.allows(who, Action.DESCRIBE, access.topic(str(one.topic)))]
        return pipeline_page(self.settings, self.clock, logs, report, limit=limit, after=after)

    # --- parts that need the others

    def admin(self, who: Principal, peer: str = "") -> BrokerAdmin:
        """Return the interface to inspect and change subscriptions. `peer` is the caller's address, for the audit."""
        from frazil.broker.admin import BrokerAdmin
        from frazil.node.topics.letter_topics import LetterTopics

        letters = LetterTopics(self.gate, self.topics(who), self._ownership.elsewhere, who, peer)
        return BrokerAdmin(self.broker(who), letters.allowed if self.gate.is_on else None)

    def dead_letters(self, who: Principal) -> DeadLetterTopics:
        """Return the interface to dead letters."""
        from frazil.node.topics.dead_letters import DeadLetterTopics

        def may_publish(topic: TopicName) -> None:
            self.must(who, Action.PRODUCE, access.topic(str(topic)))

        parts = partial(self.broker, who), partial(self.messages, who), may_publish, partial(self.gate.transfer, who)
        return DeadLetterTopics(self.storage, *parts, who)

    def telemetry(self, who: Principal) -> Telemetry:  # noqa: ARG002 - each of its calls takes the caller
        """Return the interface to tenants and their requests. Use it on the event loop of the node."""
        if self._telemetry is None:
            from frazil.node.telemetry.telemetry import Telemetry

            self._telemetry = Telemetry(self)
        return self._telemetry

    def _broker_or_none(self) -> Broker | None:
        return self.broker(LOCAL) if self.has_broker else None

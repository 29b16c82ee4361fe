"""Brokers of one cluster in one process, over one metadata store and one imagined object store.

Only what is around the ownership is imagined: logs are lists, the object store keeps lists and grants each log to one
epoch at a time. Each broker may be paused, killed and started again, cut off the metadata store, and lose its answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from virtual_time import VirtualClock, VirtualLoop

from frazil.core.errors import MetadataInUse, MetadataUnavailable, ObjectStoreUnavailable, TryLater
from frazil.core.names import TopicName
from frazil.core.process.identity import ProcessIdentity
from frazil.core.settings import Settings
from frazil.meta.sqlite import SqliteStore
from frazil.meta.store import ABSENT, Change, Lease, Watch
from frazil.meta.topic_records import TOPIC_RECORDS, LogIdentity, TopicIdentity, topic_record_key
from frazil.node.ownership.cluster_ownership import ClusterOwnership
from frazil.node.ownership.host import LocalLog
from frazil.node.ownership.opening import ClusterThreads, cluster_open

LEASE_MS = 4_000
POLL_S = 0.05

_Result = TypeVar("_Result")


class Fault(Exception):
    """The imagined store refuses: another epoch has the log."""


@dataclass(slots=True)
class ObjectLog:
    rows: list[int] = field(default_factory=list)
    epoch: int = 0


@dataclass(slots=True)
class World:
    """What outlives brokers: the stores, and what was promised to clients."""

    folder: Path
    loop: VirtualLoop
    objects: dict[str, ObjectLog] = field(default_factory=dict)
    store_is_away: bool = False
    acked: dict[TopicName, list[int]] = field(default_factory=dict)
    loss_accepted: set[TopicName] = field(default_factory=set)
    uploaded: set[tuple[TopicName, int]] = field(default_factory=set)
    """Topics that were closed and uploaded in an epoch."""
    epochs: dict[TopicName, tuple[int, str | None]] = field(default_factory=dict)
    brokers: dict[str, Broker] = field(default_factory=dict)
    dead: list[Broker] = field(default_factory=list)
    numbers: itertools.count[int] = field(default_factory=itertools.count)
    violations: list[str] = field(default_factory=list)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def store(self) -> SqliteStore:
        return SqliteStore(self.folder / "meta.db", VirtualClock(self.loop))

    def must(self, holds: bool, problem: str) -> None:
        """Note what must not be. An assertion would be taken for a failure of the topic, and be tried again."""
        if not holds:
            self.violations.append(problem)

    def audit(self) -> None:
        """What must hold at every moment, checked after every change of the metadata."""
        self.changed.set()
        self.changed = asyncio.Event()
        served: dict[tuple[TopicName, int], str] = {}
        for broker in self.brokers.values():
            for topic, epoch in broker.served().items():
                other = served.setdefault((topic, epoch), broker.name)
                self.must(other == broker.name, f"{topic} is served in epoch {epoch} by {other} and {broker.name}")

    def deleted(self, key: str) -> None:
        for topic in [one for one in self.epochs if topic_record_key(one) == key]:
            epoch, _ = self.epochs.pop(topic)
            self.acked.pop(topic, None)
            self.loss_accepted.discard(topic)
            self.uploaded -= {(topic, one) for one in range(epoch + 1)}

    def owner_changed(self, after: TopicIdentity) -> None:
        for topic, log in after.logs.items():
            epoch, owner = after.epoch_of(topic), after.owner_of(topic)
            seen = self.epochs.get(topic)
            if seen is not None and seen != (epoch, owner):
                self.must(epoch == seen[0] + 1, f"{topic}: epoch {seen[0]} was followed by {epoch}")
                may = log.ack == "object" or (topic, seen[0]) in self.uploaded or topic in self.loss_accepted
                self.must(may, f"{topic} went from {seen} to {(epoch, owner)} without its rows")
            self.epochs[topic] = (epoch, owner)


class MetaOfBroker:
    """The metadata store as one broker reaches it."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._store = world.store()
        self.is_away = False
        self.loses_owner_change = False
        """Whether the answer to the next change of a topic's record is lost."""
        self.loses: list[str] = []
        """For the next changes: `call` does not arrive, the `answer` is lost, or neither if empty."""
        self.steps_back = 0

    def __getattr__(self, name: str) -> object:  # what only reads
        self._reach()
        return getattr(self._store, name)

    def put_if(
        self,
        key: str,
        value: bytes,
        revision: int,
        lease: Lease | None = None,
        also: Mapping[str, bytes] | None = None,
    ) -> int | None:
        if self.loses_owner_change and key.startswith(TOPIC_RECORDS):
            self.loses_owner_change, self.loses = False, ["answer"]
        return self._change(lambda: self._made(key, value, self._store.put_if(key, value, revision, lease, also)))

    def put_all(self, values: Mapping[str, bytes]) -> bool:
        return self._change(lambda: self._store.put_all(values))

    def delete(self, key: str, revision: int) -> bool:
        return self._change(lambda: self._deleted(key, self._store.delete(key, revision)))

    def keep_alive(self, lease: Lease) -> bool:
        self._reach()
        return self._store.keep_alive(lease)

    def close(self) -> None:
        self._store.close()

    def _made(self, key: str, value: bytes, made: int | None) -> int | None:
        if made is not None and key.startswith(TOPIC_RECORDS):
            self._world.owner_changed(TopicIdentity.decode(value))
        return made

    def _deleted(self, key: str, is_made: bool) -> bool:
        if is_made and key.startswith(TOPIC_RECORDS):
            self._world.deleted(key)
        return is_made

    def _reach(self) -> None:
        if self.is_away:
            raise MetadataUnavailable("the test", "it is away")

    def _change(self, change: Callable[[], _Result]) -> _Result:
        self._reach()
        lost = self.loses.pop(0) if self.loses else None
        if lost == "call":
            raise MetadataUnavailable("the test", "the call was lost", unclear=True)
        made = change()
        self._world.audit()
        if lost == "answer":
            raise MetadataUnavailable("the test", "the answer was lost", unclear=True)
        return made


class Gate:
    """Calls of one broker; while it is paused they stand before the call, or between the call and its answer."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._runs = asyncio.Event()
        self._runs.set()
        self.watches_hang = False
        """Whether watches deliver nothing, as one whose connection is lost and was not made anew yet."""
        self.late_prefix = ""
        """The watch of this prefix alone delivers nothing."""

    def pause(self) -> None:
        self._runs.clear()

    def wake(self) -> None:
        self._runs.set()

    @property
    def is_paused(self) -> bool:
        return not self._runs.is_set()

    async def passed(self) -> None:
        await asyncio.sleep(0.0005)
        await self._runs.wait()

    async def call(self, work: Callable[[], _Result]) -> _Result:
        await self.passed()
        try:
            return work()
        finally:
            await self.passed()

    async def changes(self, watch: Watch) -> list[Change]:
        await self.passed()
        found: list[Change] = []
        hangs = self.watches_hang or watch._prefix == self.late_prefix
        while not hangs and (change := watch.next(0)) is not None:
            found.append(change)
        if not found:
            changed = self._world.changed
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_S):
                    await changed.wait()
        return found


@dataclass(frozen=True, slots=True)
class Local:
    log: LocalLog
    rows: list[int]


class FakeHost:
    """The topics of one broker: its disk outlives the process."""

    def __init__(self, world: World, gate: Gate, disk: dict[TopicName, Local]) -> None:
        self._world = world
        self._gate = gate
        self.disk = disk
        self.open_epochs: dict[TopicName, int] = {}
        """The epoch in the object store of each open topic."""
        self.then: Callable[[], object] | None = None
        """Called once, at the end of the next opening or upload."""

    def local(self) -> Mapping[TopicName, LocalLog]:
        return {topic: one.log for topic, one in self.disk.items()}

    async def open(self, topic: TopicName, identity: TopicIdentity) -> int:
        await self._gate.passed()
        log_id, epoch = identity.logs[topic].log_id, identity.epoch_of(topic)
        assert log_id is not None
        found = self.disk.get(topic)
        is_current = found is None or found.log == LocalLog(log_id, epoch)
        self._world.must(is_current, f"{topic}: {found} is opened in epoch {epoch} of {log_id}")
        self._reach()
        log = self._world.objects.setdefault(log_id, ObjectLog())
        log.epoch += 1
        self.open_epochs[topic] = log.epoch
        if found is None or len(found.rows) < len(log.rows):
            self.disk[topic] = Local(LocalLog(log_id, epoch), list(log.rows))
        self._world.must(self.disk[topic].rows[: len(log.rows)] == log.rows, f"{topic}: the store has other rows")
        self._end()
        await self._gate.passed()
        return log.epoch

    async def upload(self, topic: TopicName) -> None:
        await self._gate.passed()
        self._reach()
        await self._gate.passed()

    async def close_and_upload(self, topic: TopicName) -> int:
        epoch = self.open_epochs.pop(topic)
        await self._gate.passed()
        one = self.disk[topic]
        self._put(one.log.log_id, epoch, one.rows)
        self._world.uploaded.add((topic, one.log.epoch))
        self._end()
        await self._gate.passed()
        return len(one.rows)

    def _end(self) -> None:
        then, self.then = self.then, None
        if then is not None:
            then()

    async def reopen(self, topic: TopicName) -> None:
        await self._gate.passed()
        self._reach()
        log = self._world.objects[self.disk[topic].log.log_id]
        log.epoch += 1
        self.open_epochs[topic] = log.epoch
        self._world.uploaded.discard((topic, self.disk[topic].log.epoch))

    async def discard(self, topic: TopicName) -> None:
        await self._gate.passed()
        self.open_epochs.pop(topic, None)
        self.disk.pop(topic, None)  # rows that are lost by it were promised: the last check finds it

    def forget(self, topic: TopicName) -> None:
        pass

    def traffic(self) -> Mapping[TopicName, int]:
        return {}

    def publish(self, topic: TopicName, ack: str | None) -> int:
        """Append a row and return it, once it is as durable as the ack level wants."""
        one, row = self.disk[topic], next(self._world.numbers)
        epoch = self.open_epochs.get(topic)
        if epoch is None:
            raise TryLater("it is closed")
        if ack == "object":
            self._put(one.log.log_id, epoch, [*one.rows, row])
        one.rows.append(row)
        return row

    def _put(self, log_id: str, epoch: int, rows: list[int]) -> None:
        self._reach()
        log = self._world.objects[log_id]
        if log.epoch != epoch:
            raise Fault(f"epoch {epoch} of {log_id} has ended: {log.epoch} is the last")
        log.rows = list(rows)

    def _reach(self) -> None:
        if self._world.store_is_away:
            raise ObjectStoreUnavailable("objects.store", "it is away")


class Broker:
    """One process of a broker."""

    def __init__(self, world: World, name: str, disk: dict[TopicName, Local], *, far: bool) -> None:
        """`far`: whether others cannot tell if the process runs, as on another machine."""
        self.name = name
        self.world = world
        self.far = far
        self.is_dead = False
        self.gate = Gate(world)
        self.meta = MetaOfBroker(world)
        self.host = FakeHost(world, self.gate, disk)
        self.lost: MetadataInUse | None = None
        self.ownership: ClusterOwnership | None = None
        self._identity = replace(ProcessIdentity.own(), pid=next(world.numbers))
        self._ends = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        world.brokers[name] = self

    def served(self) -> Mapping[TopicName, int]:
        return {} if self.ownership is None or self.is_dead else self.ownership._owned.served()

    async def start(self) -> None:
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(ready))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([self._task, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._task.done():
            await self._task

    async def _run(self, ready: asyncio.Event) -> None:
        cluster = {"broker_id": self.name, "lease_ms": LEASE_MS, "rebalance_interval_ms": 5_000}
        settings = Settings.model_validate({"data": self.world.folder, "cluster": cluster})
        addresses = {"flight": f"{self.name}:1"}
        clock = VirtualClock(self.world.loop)

        def lost(error: MetadataInUse) -> None:
            self.lost = error

        async with AsyncExitStack() as stack:
            threads = ClusterThreads(self.gate, self.gate, self.gate)
            opening = cluster_open(
                self.meta,  # type: ignore[arg-type] - the rest is passed on
                settings,
                self.host,
                addresses,
                clock,
                lost,
                threads=threads,
                process=self._identity,
                is_running=self.world_knows,
            )
            self.ownership = await stack.enter_async_context(opening)
            self.ownership.start()
            ready.set()
            await self._ends.wait()
            await self.ownership.leave()

    def world_knows(self, process: ProcessIdentity) -> bool | None:
        for broker in [*self.world.brokers.values(), *self.world.dead]:
            if broker._identity == process:
                return None if broker.far else not broker.is_dead
        return False

    async def stop(self) -> None:
        assert self._task is not None
        self._ends.set()
        await self._task
        self.is_dead = True
        self.world.dead.append(self)

    async def kill(self) -> None:
        """As SIGKILL: nothing is released."""
        assert self._task is not None
        self.is_dead = True
        self.meta.is_away = True
        self.gate.wake()
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self.world.dead.append(self)

    async def create(self, topic: TopicName, ack: str | None) -> None:
        log_id = f"log-{next(self.world.numbers)}"
        identity = TopicIdentity(topic, {topic: LogIdentity(log_id, 0, ack=ack)}, self.name)
        key, value = topic_record_key(topic), identity.encode()
        made = await self.gate.call(lambda: self.meta.put_if(key, value, ABSENT))
        if made is None:
            raise TryLater("it exists")
        assert self.ownership is not None
        await self.ownership.created(topic)

    async def delete(self, topic: TopicName) -> None:
        """Delete a topic that this broker serves: its record first, then its log."""
        assert self.ownership is not None
        self.ownership.must_own(topic)
        key = topic_record_key(topic)
        found = await self.gate.call(lambda: self.meta._store.get(key))
        if topic not in self.served() or found is None:
            raise TryLater("it has moved, or is gone")
        assert await self.gate.call(lambda: self.meta.delete(key, found.revision)) in (True, False)

    def publish(self, topic: TopicName) -> None:
        """Publish a row here, as a client does that was sent here; raises what it gets."""
        assert self.ownership is not None
        self.ownership.must_own(topic)
        if topic not in self.served():
            raise TryLater("unknown")
        state = self.ownership._view.topic(topic)
        try:
            row = self.host.publish(topic, "object" if state is not None and state.fails_over else None)
        except Fault as fault:
            self.host.open_epochs.pop(topic, None)
            self.ownership.failed(topic, fault)
            raise TryLater(str(fault)) from None
        self.world.acked.setdefault(topic, []).append(row)
